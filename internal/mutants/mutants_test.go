package mutants

import (
	"strings"
	"testing"
)

const source = `package p

func rule(n int) bool { return n > 0 && n < 9 }

type a struct{}

func (a) twice() {}
func twice()     {}
`

func TestEdits(t *testing.T) {
	tests := []struct {
		name string
		e    Edit
		want string // in the source, or in the error after a !
	}{
		{"an edit", Replace("p.go", "rule", "n > 0", "(MUTANT || n > 0)"), "return (MUTANT || n > 0) && n < 9"},
		{"no such function", Replace("p.go", "none", "n", "m"), "!no function none"},
		{"two such functions", Replace("p.go", "twice", "n", "m"), "!two functions twice"},
		{"no such text", Replace("p.go", "rule", "n > 1", "true"), `!"n > 1" 0 times`},
		{"text that occurs twice", Replace("p.go", "rule", "n ", "m "), "!times, want once"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.e.apply([]byte(source))
			if what, fails := strings.CutPrefix(tt.want, "!"); fails {
				if err == nil || !strings.Contains(err.Error(), what) {
					t.Errorf("error %v, want %q", err, what)
				}
			} else if err != nil || !strings.Contains(string(got), tt.want) {
				t.Errorf("%v:\n%s", err, got)
			}
		})
	}
	if _, err := Replace("p.go", "rule", "n", "m").apply([]byte("not Go")); err == nil {
		t.Error("what is not Go is edited")
	}
}
