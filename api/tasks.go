package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/wire"
)

// The inputs of the task routes.
type (
	// ByID names a task or a mail in the path.
	ByID struct {
		ID string `path:"id" pattern:"^[0-9A-Fa-f-]{1,36}$" doc:"id, or the beginning of one that is unique"`
	}
	// ofTask is a document for a task.
	ofTask[B any] struct {
		ByID
		Body B
	}
	// List requests a page of tasks.
	List struct {
		wire.Query
		Order  string `query:"order" enum:"newest,oldest" default:"newest" doc:"which tasks come first"`
		Cursor string `query:"cursor" maxLength:"1024" doc:"next of the previous page"`
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	}
	// WaitFor is how long to wait.
	WaitFor struct {
		ByID
		Timeout string `query:"timeout" default:"30s" doc:"at most 10m"`
	}
)

// maxWait bounds one waiting request; clients repeat it.
const maxWait = 10 * time.Minute

func (l List) query() wire.Query {
	q := l.Query
	q.Oldest, q.Cursor, q.Limit = l.Order == "oldest", l.Cursor, l.Limit
	return q
}

func (s *Server) routeSubmits() {
	s.mux.HandleFunc("POST /v1/tasks", s.submit)
	s.mux.HandleFunc("POST /v1/tasks/batch", s.batch)
	one := op("POST", "/v1/tasks", "submitTask", "tasks", "Submit a task")
	one.Description = "The response means that the task is on disk. A JSON document has all fields of the task and no query. " +
		"With any other content type the content is the task's body, of any size, and the fields are in the query."
	one.Parameters = submitParams()
	one.RequestBody = &huma.RequestBody{Required: true, Content: content(schema[submit](s), jsonType)}
	one.RequestBody.Content[jsonType].Example = json.RawMessage(`{"target": "laptop", "kind": "resize", "args": ["800", "600"], "body": "aGVsbG8=", "ttl": "24h", "labels": {"album": "summer"}}`)
	one.RequestBody.Content["application/octet-stream"] = &huma.MediaType{Schema: &huma.Schema{Type: "string", Format: "binary"}}
	one.Responses = answers[wire.Submitted](s, "202", "The task is on disk; Location is its URL")
	s.api.OpenAPI().AddOperation(&one)

	many := op("POST", "/v1/tasks/batch", "submitTasks", "tasks", "Submit many tasks")
	many.Description = fmt.Sprintf("At most %d tasks and %d MiB. An invalid task does not affect the others: each has its own status.", wire.MaxBatch, wire.MaxBatchBytes>>20)
	many.RequestBody = &huma.RequestBody{Required: true, Content: content(&huma.Schema{Type: "array", Items: schema[submit](s)}, jsonType)}
	many.RequestBody.Content["application/x-ndjson"] = &huma.MediaType{Schema: schema[submit](s)}
	many.Responses = answers[wire.Batch](s, "200", "The result for each task")
	s.api.OpenAPI().AddOperation(&many)
}

// submitParams describes the parameters of a submit other than its body.
func submitParams() []*huma.Param {
	params := []*huma.Param{
		{Name: "Idempotency-Key", In: "header", Description: "same key, same task; same key with another request: 409", Schema: &huma.Schema{Type: "string"}},
	}
	return append(params, streamParams(new(wire.Request).QueryFields())...)
}

// streamParams describes the fields of a task or a mail in the query of a stream.
func streamParams(fields map[string]any) (params []*huma.Param) {
	stringList := &huma.Schema{Type: "array", Items: &huma.Schema{Type: "string"}}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		p := &huma.Param{Name: name, In: "query", Description: "of a stream", Schema: &huma.Schema{Type: "string"}}
		switch fields[name].(type) {
		case *[]string:
			p.Description, p.Schema = "of a stream; repeatable", stringList
		case *map[string]string:
			p.Description, p.Schema = "of a stream: name=value; repeatable", stringList
		case *uint32, *int64, *uint64, *int:
			p.Schema = &huma.Schema{Type: "integer"}
		case *bool:
			p.Schema = &huma.Schema{Type: "boolean"}
		case *time.Time:
			p.Schema = &huma.Schema{Type: "string", Format: "date-time"}
		}
		params = append(params, p)
	}
	return params
}

func (s *Server) routeTasks() {
	route(s, op("GET", "/v1/tasks", "listTasks", "tasks", "List tasks, newest first"), func(ctx context.Context, in *List) (wire.Page[wire.Task], error) {
		return paged(s.views.Tasks(in.query()))
	})
	route(s, op("GET", "/v1/tasks/{id}", "getTask", "tasks", "Show a task with its events"), func(ctx context.Context, in *ByID) (wire.Task, error) {
		return s.views.Task(ctx, in.ID)
	})
	wait := op("GET", "/v1/tasks/{id}/wait", "waitTask", "tasks", "Wait until a task has ended")
	wait.Description = "200 if it has ended, 202 with the current task if it has not: repeat the request."
	wait.Responses = answers[wire.Task](s, "202", "It has not ended yet")
	register(s, wait, s.wait)
	route(s, op("GET", "/v1/tasks/{id}/receipts", "getReceipts", "tasks", "Show the receipts of a task, with their proofs"), func(ctx context.Context, in *ByID) (wire.Page[wire.Receipt], error) {
		rs, err := s.views.Receipts(ctx, in.ID)
		return list(rs), err
	})
	result := op("GET", "/v1/tasks/{id}/result", "getResult", "tasks", "Read the result of a task")
	result.Responses = answers[string](s, "200", "The result, byte for byte, in its own content type")
	result.Responses["200"].Content = content(&huma.Schema{Type: "string", Format: "binary"}, "*/*")
	register(s, result, s.result)
	s.routeTaskWrites()
}

func (s *Server) routeTaskWrites() {
	route(s, op("POST", "/v1/tasks/{id}/cancel", "cancelTask", "tasks", "Cancel a task"), func(ctx context.Context, in *ofTask[*wire.Cancel]) (wire.Task, error) {
		how := orZero(in.Body)
		return s.tasks.Cancel(ctx, in.ID, how.Hard, how.Reason)
	})
	retry := op("POST", "/v1/tasks/{id}/retry", "retryTask", "tasks", "Repeat an ended task as a new one")
	retry.DefaultStatus = http.StatusAccepted
	register(s, retry, func(ctx context.Context, in *ByID) (*newTask, error) {
		done, err := s.redriver.Retry(ctx, in.ID)
		return &newTask{"/v1/tasks/" + done.ID, done}, err
	})
	s.routeTaskEdits()
	route(s, op("POST", "/v1/tasks/purge", "purgeTasks", "tasks", "Remove ended tasks"), func(ctx context.Context, in *struct{ Body wire.Purge }) (wire.Purged, error) {
		return s.tasks.Purge(ctx, in.Body.Query, in.Body.DryRun)
	})
	for _, path := range []string{"/v1/tasks/batch", "/v1/tasks/purge"} { // these paths are not task ids
		s.mux.HandleFunc("GET "+path, postOnly)
	}
}

// A newTask is the response with a new task.
type newTask struct {
	Location string `header:"Location"`
	Body     wire.Submitted
}

// postOnly rejects GET for a route that only writes.
func postOnly(w http.ResponseWriter, r *http.Request) {
	probe := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Allow", http.MethodPost) })
	noRoute(w, r, probe)
}

// A waitResponse is a task and whether it has ended.
type waitResponse struct {
	Status int
	Body   wire.Task
}

func (s *Server) wait(ctx context.Context, in *WaitFor) (*waitResponse, error) {
	d, err := duration("timeout", in.Timeout)
	if err != nil {
		return nil, err
	}
	waiting, cancel := stopContext(ctx, min(d, maxWait))
	defer cancel()
	t, err := s.views.Wait(waiting, in.ID)
	switch {
	case err == nil:
		return &waitResponse{http.StatusOK, t}, nil
	case errors.Is(context.Cause(waiting), wire.ErrDraining):
		p := problem(wire.CodeDraining, "wait for %s: the node is stopping", in.ID)
		p.Fix = "the task is safe: retry when the node has started"
		return nil, p
	case waiting.Err() != nil && t.ID != "":
		return &waitResponse{http.StatusAccepted, t}, nil
	}
	return nil, err
}

// A resultResponse is the result of a task, byte for byte.
type resultResponse struct {
	Type   string `header:"Content-Type"`
	Length uint64 `header:"Content-Length"`
	ETag   string `header:"ETag" doc:"the digest, algorithm:hex"`
	State  string `header:"Balefire-State" doc:"how the task ended"`
	Cut    string `header:"Balefire-Truncated" doc:"true: the handler wrote more than its limit"`
	Body   func(huma.Context)
}

func (s *Server) result(ctx context.Context, in *ByID) (*resultResponse, error) {
	body, t, err := s.views.Result(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := &resultResponse{Type: t.ResultType, Length: t.ResultSize, State: t.State}
	if out.Type == "" {
		out.Type = "application/octet-stream"
	}
	if t.ResultHash != "" {
		out.ETag = `"` + t.ResultHash + `"`
	}
	if t.Truncated {
		out.Cut = "true"
	}
	out.Body = func(c huma.Context) {
		defer body.Close()
		n, err := io.Copy(c.BodyWriter(), body)
		if err != nil || uint64(n) != t.ResultSize {
			s.cfg.Logger.Warn("a result was not sent completely", "task", t.ID, "bytes", n, "of", t.ResultSize, "err", err)
			panic(http.ErrAbortHandler) // the client must not mistake a part for the whole
		}
	}
	return out, nil
}

func list[T any](items []T) wire.Page[T] {
	if items == nil {
		items = []T{}
	}
	return wire.Page[T]{Items: items}
}

func paged[T any](p wire.Page[T], err error) (wire.Page[T], error) {
	if p.Items == nil {
		p.Items = []T{}
	}
	return p, err
}
