package wire

import (
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

func FuzzRequestOfQuery(f *testing.F) {
	f.Add("target=l&kind=k&arg=a&arg=&label=a=b&ttl=1h&at=2026-11-20T12:00:00Z&retries=3")
	f.Add("target=l&target=m")
	f.Add("label==")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		r, err := RequestOfQuery(q)
		if err != nil {
			return
		}
		if q, err = r.Query(); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		back, err := RequestOfQuery(q)
		if r.At, back.At = r.At.UTC(), back.At.UTC(); err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%+v came back as %+v: %v", r, back, err)
		}
	})
}

// An error of a query says once that the request is invalid, and names the parameter.
func TestErrorsOfAQueryNameTheParameter(t *testing.T) {
	_, err := RequestOfQuery(url.Values{"ttl": {"x"}})
	if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), `invalid request: ttl: "x" is not a duration`) {
		t.Error(err)
	}
}
