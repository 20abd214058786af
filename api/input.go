package api

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// A question is the input of every route of huma, whose own [input] decodes it. One type for
// all routes keeps the program small, like [answer].
type question struct{ c huma.Context }

// Resolve keeps the context for the input of the route.
func (q *question) Resolve(c huma.Context) []error {
	q.c = c
	return nil
}

// An input decodes the requests of one route into a struct: its parameters into the fields
// with a tag path, query or header, and its document into the field Body, which is a pointer
// if a request needs no document. The other tags are those of huma, which validates all of it.
type input struct {
	typ     reflect.Type
	schemas huma.Registry
	params  []param
	query   map[string]bool   // the names of the parameters in the query
	body    []int             // the index of the field Body; nil: the route has no document
	content *huma.RequestBody // of the route
}

// A param is one parameter of a route.
type param struct {
	*huma.Param
	index []int  // of its field
	def   string // the text of its default
	parse func(text string) (any, error)
}

// newInput returns the input of the route o with this type and describes it in o.
func newInput(schemas huma.Registry, o *huma.Operation, typ reflect.Type) *input {
	in := &input{typ: typ, schemas: schemas, query: map[string]bool{}}
	for _, f := range reflect.VisibleFields(typ) {
		for _, where := range []string{"path", "query", "header"} {
			if name := f.Tag.Get(where); name != "" {
				in.params = append(in.params, in.param(f, where, name))
				in.query[name] = in.query[name] || where == "query"
			}
		}
		if f.Name == "Body" {
			in.body = f.Index
			schema := huma.SchemaFromField(schemas, f, o.OperationID+"Request")
			schema.PrecomputeMessages()
			in.content = &huma.RequestBody{Required: f.Type.Kind() != reflect.Pointer, Content: content(schema, jsonType)}
		}
	}
	for _, p := range in.params {
		o.Parameters = append(o.Parameters, p.Param)
	}
	o.RequestBody = in.content
	return in
}

func (in *input) param(f reflect.StructField, where, name string) param {
	schema := huma.SchemaFromField(in.schemas, f, "")
	p := &huma.Param{Name: name, In: where, Description: schema.Description, Required: where == "path", Schema: schema}
	if where == "query" {
		p.Explode = new(bool) // a list is separated by commas
	}
	parse := parsers[f.Type]
	if parse == nil {
		panic("api: the parameter " + name + " has an unknown type " + f.Type.String()) // the routes are the same in every program
	}
	return param{p, f.Index, f.Tag.Get("default"), parse}
}

// parsers has the types of parameters.
var parsers = map[reflect.Type]func(text string) (any, error){
	reflect.TypeFor[string]():   func(text string) (any, error) { return text, nil },
	reflect.TypeFor[[]string](): func(text string) (any, error) { return strings.Split(text, ","), nil },
	reflect.TypeFor[int](): func(text string) (any, error) {
		n, err := strconv.Atoi(text)
		return n, explain(err, "invalid integer")
	},
	reflect.TypeFor[uint64](): func(text string) (any, error) {
		n, err := strconv.ParseUint(text, 10, 64)
		return n, explain(err, "invalid integer")
	},
	reflect.TypeFor[time.Time](): func(text string) (any, error) {
		t, err := time.Parse(time.RFC3339Nano, text)
		return t, explain(err, "invalid date/time for format "+time.RFC3339Nano)
	},
}

// explain returns what an error means, if there is one.
func explain(err error, text string) error {
	if err != nil {
		return errors.New(text)
	}
	return nil
}

// read returns a pointer to the struct of a request, or a problem with all its faults.
func (in *input) read(c huma.Context) (any, error) {
	v, faults := reflect.New(in.typ), new(huma.ValidateResult)
	if err := in.checkQuery(c, faults); err != nil {
		return nil, err
	}
	if len(faults.Errors) > 0 {
		return nil, invalid(http.StatusUnprocessableEntity, faults)
	}
	for _, p := range in.params {
		in.readParam(c, p, v.Elem().FieldByIndex(p.index), faults)
	}
	status := http.StatusUnprocessableEntity
	if in.body != nil {
		b, err := io.ReadAll(c.BodyReader())
		switch {
		case err != nil:
			return nil, err
		case len(b) > 0:
			status = in.readDocument(b, v.Elem().FieldByIndex(in.body), faults)
		case in.content.Required:
			return nil, huma.NewError(http.StatusBadRequest, "request body is required", faults.Errors...)
		}
	}
	if r, ok := v.Interface().(huma.Resolver); ok {
		faults.Errors = append(faults.Errors, r.Resolve(c)...)
	}
	if len(faults.Errors) > 0 {
		return nil, invalid(status, faults)
	}
	return v.Interface(), nil
}

func invalid(status int, faults *huma.ValidateResult) error {
	return huma.NewError(status, "validation failed", faults.Errors...)
}

// checkQuery adds the parameters in the query that the route does not have, or that are given
// twice. It returns the problem of a query that cannot be parsed, of which huma would drop a part.
func (in *input) checkQuery(c huma.Context, faults *huma.ValidateResult) error {
	u := c.URL()
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return malformed("read the query: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !in.query[name]:
			faults.Add(place("query", name), "", "unknown query parameter")
		case len(q[name]) > 1:
			faults.Add(place("query", name), "", "the query parameter is given twice")
		}
	}
	return nil
}

// readParam sets the field of a parameter.
func (in *input) readParam(c huma.Context, p param, field reflect.Value, faults *huma.ValidateResult) {
	get := map[string]func(string) string{"path": c.Param, "query": c.Query, "header": c.Header}[p.In]
	text, at := get(p.Name), place(p.In, p.Name)
	if text == "" {
		text = p.def
	}
	switch {
	case text == "" && p.Required:
		faults.Add(at, "", "required "+p.In+" parameter is missing")
		return
	case text == "":
		return
	}
	v, err := p.parse(text)
	if err != nil {
		faults.Add(at, text, err.Error())
		return
	}
	field.Set(reflect.ValueOf(v))
	if _, ok := v.(time.Time); ok {
		v = text
	}
	huma.Validate(in.schemas, p.Schema, at, huma.ModeWriteToServer, v, faults)
}

// readDocument decodes a document into the field Body and returns the status for its faults.
func (in *input) readDocument(b []byte, field reflect.Value, faults *huma.ValidateResult) (status int) {
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		faults.Add(place("body"), "", err.Error())
		return http.StatusBadRequest
	}
	before := len(faults.Errors)
	huma.Validate(in.schemas, in.content.Content[jsonType].Schema, place("body"), huma.ModeWriteToServer, doc, faults)
	if err := json.Unmarshal(b, field.Addr().Interface()); err != nil && len(faults.Errors) == before {
		faults.Add(place("body"), "", err.Error())
	}
	return http.StatusUnprocessableEntity
}

// place returns a part of a request, for messages.
func place(names ...string) *huma.PathBuffer {
	at := huma.NewPathBuffer(nil, 0)
	for _, name := range names {
		at.Push(name)
	}
	return at
}
