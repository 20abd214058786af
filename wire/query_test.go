package wire

import (
	"net/url"
	"reflect"
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
