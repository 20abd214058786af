package command

import (
	"os"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// There is a warning for programs that execute their arguments, but only if a task's
// arguments can reach them.
func TestProgramsThatRunTheirArguments(t *testing.T) {
	tests := []struct {
		exec        string
		args, flags bool
		warn        bool
	}{
		{"sh", true, false, true}, {"/bin/bash", true, false, true}, {"python3.12", true, false, true}, {"perl", true, true, true},
		{"xargs", true, false, true}, {"env", true, false, true}, {"ssh host", true, false, true}, {"sudo -n", true, false, true},
		{"find /srv", true, true, true}, {"git -C /srv", true, true, true}, {"tar -xf", true, true, true},
		{"sh", false, false, false}, {"env", false, true, false},
		{"sh -c script name", true, false, false}, {"python3 /opt/x.py", true, true, false},
		{"find /srv", true, false, false}, {"uname", true, true, false}, {"/opt/bin/resize", true, true, false}, {"", true, true, false},
	}
	for _, tt := range tests {
		if got := Warn(strings.Fields(tt.exec), tt.args, tt.flags); (len(got) > 0) != tt.warn {
			t.Errorf("Warn(%q, args %v, flags %v) = %v, want a warning %v", tt.exec, tt.args, tt.flags, got, tt.warn)
		}
	}
}

// A handler that accepts arguments refuses flags unless configured otherwise: with find
// they would run any program.
func TestFindRunsNothingForASender(t *testing.T) {
	dir := t.TempDir()
	task := &handler.Run{Dir: dir, Content: &proto.Content{Args: []string{"-exec", "touch", "{}.was-here", ";"}}}
	for _, exec := range [][]string{{"find", dir}, {"find", dir, "--"}, {"find"}} {
		if res := run(t, Config{Exec: exec, AllowArgs: true}, task); res.Outcome != handler.Fail || res.Code != -1 {
			t.Errorf("%q: %+v, want fail before a start, with a hint on how to allow it", exec, res)
		}
	}
	if _, err := os.Stat(dir + ".was-here"); err == nil {
		t.Error("the sender's program ran")
	}
}
