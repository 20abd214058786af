package api

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/balefire/balefire/wire"
)

// A form is a document with a body: a task or a mail. Its text is an alternative to its body.
type form struct {
	what            string          // in messages
	fields          map[string]bool // the JSON names of its fields
	doc             any             // points to the document
	body            *[]byte         // fields of the document
	mediaType, text *string
}

// fieldsOf returns the JSON names of the fields of a form.
func fieldsOf[T any]() map[string]bool {
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && name != "-" {
			names[name] = true
		}
	}
	return names
}

// readForm reads a JSON form of at most limit bytes.
func readForm(w http.ResponseWriter, r *http.Request, what string, limit int64) ([]byte, error) {
	if r.URL.RawQuery != "" {
		return nil, problem(wire.CodeInvalid, "a JSON %s has all its fields in the document: move the query parameters %.80q there", what, r.URL.RawQuery)
	}
	return readBody(w, r, limit)
}

// decode decodes a form strictly. Whether its fields are valid is checked by the node.
func (f form) decode(b []byte) error {
	w := scanner{b: b, noted: "body"}
	if err := w.document(func(name string) bool { return f.fields[name] }); err != nil {
		return malformed("read the %s: %v", f.what, err)
	}
	rest, body := splitBody(b, w.from, w.to)
	return f.unmarshal(rest, body)
}

// unmarshal decodes a form whose body may have been taken out of it.
func (f form) unmarshal(b, body []byte) error {
	switch err := json.Unmarshal(b, f.doc); {
	case errors.Is(err, wire.ErrInvalid):
		return ProblemOf(err)
	case err != nil:
		return malformed("read the %s: %s", f.what, plainJSONError(err))
	}
	if body != nil {
		*f.body = body
	}
	if *f.text == "" {
		return nil
	}
	if len(*f.body) > 0 {
		return problem(wire.CodeInvalid, "body and text are both given: a %s has one body", f.what)
	}
	*f.body, *f.mediaType = []byte(*f.text), cmp.Or(*f.mediaType, "text/plain; charset=utf-8")
	return nil
}

// splitBody decodes the body of a form, which is at from to to of b, and returns b without
// it. A value that is not plain base64 is left to encoding/json, which decodes it or reports
// the error: then rest is b and there is no body.
func splitBody(b []byte, from, to int) (rest, body []byte) {
	if from == to || b[from] != '"' {
		return b, nil
	}
	text := b[from+1 : to-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		return b, nil
	}
	body = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(body, text)
	if err != nil || base64.StdEncoding.EncodedLen(n) != len(text) { // it accepts line ends
		return b, nil
	}
	rest, _ = cut(b, from, to, `""`)
	return rest, body[:n]
}

// cut returns a document without the value at from to to, which may be most of it, and that
// value: encoding/json scans each byte several times. Where nothing is, from is to, nothing
// is cut.
func cut(b []byte, from, to int, instead string) (rest, value []byte) {
	if from == to {
		return b, nil
	}
	return slices.Concat(b[:from], []byte(instead), b[to:]), b[from:to]
}

// fieldName returns the path of a field without the Go types that its documents embed.
func fieldName(path string) string {
	for {
		name, rest, ok := strings.Cut(path, ".")
		if !ok || name == strings.ToLower(name) {
			return path
		}
		path = rest
	}
}

// plainJSONError describes a decoding error without naming Go types.
func plainJSONError(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		text := fmt.Sprintf("field %q cannot be a %s", fieldName(e.Field), e.Value)
		switch e.Type.Kind() {
		case reflect.Uint32:
			text += fmt.Sprintf(": it must be a whole number from 0 to %d", uint32(math.MaxUint32))
		case reflect.Int64:
			text += fmt.Sprintf(": it must be a whole number from 0 to %d", math.MaxInt64)
		}
		return text
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}
