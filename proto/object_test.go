package proto

import "testing"

// A result is as large as it states or as its stream is, whichever is more.
func TestResultSize(t *testing.T) {
	if n := ResultSize(new(Header), &Outcome{Body: make([]byte, 7)}); n != 7 {
		t.Errorf("inline: %d", n)
	}
	if n := ResultSize(new(Header), &Outcome{Body: make([]byte, 7), BodySize: 9}); n != 9 {
		t.Errorf("stated: %d", n)
	}
}
