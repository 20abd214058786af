package wire

import (
	"net/url"
	"reflect"
	"testing"
)

// FuzzMailOfQuery reads any query as the fields of a mail, which come back the same.
func FuzzMailOfQuery(f *testing.F) {
	f.Add("to=agent:ceo&subject=a.b&class=high&key=k&label=a=b&ttl=1h&at=2026-11-20T12:00:00Z&hops=3&relaxed=true&number=7")
	f.Add("to=l&to=m")
	f.Add("relaxed=maybe")
	f.Add("stream=x")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		m, err := MailOfQuery(q)
		if err != nil {
			return
		}
		if q, err = m.Query(); err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
		back, err := MailOfQuery(q)
		if m.At, back.At = m.At.UTC(), back.At.UTC(); err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%+v came back as %+v: %v", m, back, err)
		}
	})
}

// TestEveryFieldOfAMailIsInItsQuery looks for a field that a stream would lose.
func TestEveryFieldOfAMailIsInItsQuery(t *testing.T) {
	var m Mail
	fields := map[any]bool{}
	for _, p := range m.QueryFields() {
		fields[reflect.ValueOf(p).Pointer()] = true
	}
	v := reflect.ValueOf(&m).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if is := fields[v.Field(i).Addr().Pointer()]; is == (name == "Body" || name == "Stream") {
			t.Errorf("%s is in the query: %v", name, is)
		}
	}
}
