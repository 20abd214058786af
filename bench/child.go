package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/wire"
)

// A child is a separate process: a node, a client of a node's socket, a broker, or a
// bare store. The parent sends requests as lines of JSON to its standard input, one
// at a time, and it answers each with a line on its standard output.
type child struct {
	out       *json.Encoder
	watch     *watch
	node      *node.Node
	submitter submitter // where its loads are submitted
	profile   *os.File
	stops     []func() error // in reverse order
}

// A submitter accepts tasks: a node, or a client of one.
type submitter interface {
	Submit(context.Context, wire.Request) (wire.Submitted, error)
	SubmitMany(context.Context, []wire.Request) ([]wire.Submitted, []error)
}

// A request is a command of the parent.
type request struct {
	Do    string
	Open  opening
	Load  load
	Front storeLoadConfig
	Flow  flow
	Mail  mailLoad
	Count int // required members of a queue; subscriptions of a topic
	On    bool
	Path  string // of a socket, a profile, a folder; or an address, a peer, a task
}

// A response is a message of a child.
type response struct {
	Error  string        `json:",omitempty"`
	Event  string        `json:",omitempty"` // an event before the result: the measurement has started
	Text   string        `json:",omitempty"` // a ticket, an address
	Took   time.Duration `json:",omitempty"`
	Count  int           `json:",omitempty"` // tasks of the queue
	Usage  usage         `json:",omitzero"`
	Report report        `json:",omitzero"`
}

// serveRequests runs the child until its standard input ends.
func serveRequests() error {
	c := &child{out: json.NewEncoder(os.Stdout), watch: newWatch()}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var o request
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		a, err := c.do(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := c.out.Encode(a); err != nil {
			return err
		}
	}
	return c.stop()
}

func (c *child) do(o request) (response, error) {
	switch o.Do {
	case "open":
		return c.open(o.Open)
	case "invite":
		inv, err := c.node.Pairing.Invite(context.Background(), wire.InviteOptions{})
		return response{Text: inv.Ticket}, err
	case "queue", "pause", "handoff", "count", "give", "cancel":
		return c.share(o)
	case "serve":
		return response{}, c.serve(o.Path)
	case "dial":
		cl := client.New(o.Path)
		c.submitter = cl
		c.stops = append(c.stops, func() error { cl.Close(); return nil })
		return response{}, nil
	case "dialmail", "dialmailer":
		return response{}, c.dialMail(o)
	case "mailbox", "topic":
		return response{}, c.makeBox(o)
	case "mails":
		return c.loadMail(o.Mail)
	case "load":
		return c.load(o.Load)
	case "usage":
		return response{Usage: c.measure()}, nil
	case "profile":
		return response{}, c.record(o.Path)
	case "front":
		return c.measureStore(o.Front)
	case "sync":
		d, err := syncTime(o.Path)
		return response{Took: d}, err
	case "echo":
		return c.echo()
	case "ping":
		d, err := pingTime(o.Path)
		return response{Took: d}, err
	case "broker":
		return c.broker(o.Path, o.On)
	case "flow":
		return c.flow(o.Flow)
	}
	return response{}, fmt.Errorf("unknown request %q", o.Do)
}

// serve serves the node's API on a unix socket.
func (c *child) serve(path string) error {
	l, err := api.Listen(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := api.New(c.node, api.Config{})
	go func() { done <- s.Serve(ctx, l) }()
	c.stops = append(c.stops, func() error { cancel(); return <-done })
	return nil
}

// record starts a CPU profile in the file at path, or stops it if path is empty and writes
// what the process has allocated to a file with the same name and -allocs.
func (c *child) record(path string) error {
	if path == "" {
		pprof.StopCPUProfile()
		return errors.Join(c.profile.Close(), writeAllocs(c.profile.Name()+"-allocs"))
	}
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return err
	}
	c.profile = f
	return pprof.StartCPUProfile(f)
}

func writeAllocs(path string) error {
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}

// stop stops everything that requests have started.
func (c *child) stop() error {
	var errs []error
	for i := len(c.stops) - 1; i >= 0; i-- {
		if err := c.stops[i](); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
