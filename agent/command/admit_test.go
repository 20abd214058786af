package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// metacharacters are arguments with a special meaning to a shell, cmd.exe, printf,
// globbing or a careless template. Here they are literal.
var metacharacters = []string{
	";id", "a;id", "|id", "a|id", "||id", "&id", "&&id", "a&", "`id`", "$(id)", "${IFS}id", "$HOME", "$0", "$$", "$!", "$?", "$((1+1))",
	">out", ">>out", "<in", "<<EOF", "<<<x", "2>&1", ">&2", "&>out", "<(id)", ">(id)", "(id)", "{id;}", "{a,b}", "[a-z]", "*", "?", "~", "~root",
	"!id", "!!", "^a^b", "#comment", "'", "''", "\"", "\"\"", "'a'b\"c\"", "\\", "\\\\", "\\n", "a\\", "%PATH%", "%d%s%n", "!PATH!", "^&id", "\"&id&\"",
	"a\nid", "a\r\nid", "\n", "\t", " ", "", "  a  ", "a b", "\x1b[2J", "\x7f", "{{.}}", "{body}", "${jndi:ldap://x}", "../../etc/passwd", "@file",
	"烽火", "é", "e\u0301", "\u202e", "\ufeff", "a=b", "NAME=value", "http://x/?a=b&c=d#e", "+x", ":", ".", "..",
}

// Every argument of a task reaches the program unchanged and has no other effect.
func TestMetacharactersMeanNothing(t *testing.T) {
	if len(metacharacters) < 60 {
		t.Fatalf("%d cases, want at least 60", len(metacharacters))
	}
	dir := t.TempDir()
	cfg := Config{Exec: program(t, "argv", "fixed"), AllowArgs: true}
	check := func(args []string) {
		t.Helper()
		res := run(t, cfg, &handler.Run{Content: &proto.Content{Args: args}, Dir: dir})
		var got []string
		if err := json.Unmarshal(res.Output, &got); err != nil || res.Outcome != handler.Success {
			t.Fatalf("args %q: %+v", args, res)
		}
		if want := append([]string{"fixed"}, args...); !slices.Equal(got, want) {
			t.Errorf("the program got %q, want %q", got, want)
		}
	}
	for _, word := range metacharacters {
		if err := cfg.admitArgs([]string{word}, "linux"); err != nil {
			t.Errorf("%q: %v", word, err)
		}
	}
	for pair := range slices.Chunk(metacharacters, 10) {
		check(pair)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("the arguments created files: %v, %v", list, err)
	}
}

func TestArgumentsThatAreRefused(t *testing.T) {
	none := Config{Exec: []string{"x"}}
	plain := Config{Exec: []string{"x"}, AllowArgs: true}
	closed := Config{Exec: []string{"x", "--"}, AllowArgs: true}
	flags := Config{Exec: []string{"x"}, AllowArgs: true, AllowFlags: true}
	tests := []struct {
		name string
		cfg  Config
		goos string
		args []string
		ok   bool
	}{
		{"none where none are taken", none, "linux", nil, true},
		{"one where none are taken", none, "linux", []string{"a"}, false},
		{"an empty one where none are taken", none, "linux", []string{""}, false},
		{"plain", plain, "linux", []string{"a", "b"}, true},
		{"NUL", plain, "linux", []string{"a\x00b"}, false},
		{"NUL alone", flags, "linux", []string{"\x00"}, false},
		{"NUL at the end", flags, "linux", []string{"a", "b\x00"}, false},
		{"not UTF-8", plain, "linux", []string{"\xff\xfe"}, false},
		{"cut UTF-8", plain, "linux", []string{"\xe7\x83"}, false},
		{"a lone dash", plain, "linux", []string{"-"}, false},
		{"a short flag", plain, "linux", []string{"-rf"}, false},
		{"a long flag", plain, "linux", []string{"--output=/etc/passwd"}, false},
		{"a flag after a word", plain, "linux", []string{"a", "-o"}, false},
		{"its own end of flags", plain, "linux", []string{"--", "-rf"}, false},
		{"a dash inside", plain, "linux", []string{"a-b"}, true},
		{"a space before a dash", plain, "linux", []string{" -rf"}, true},
		{"a flag after a configured end of flags, which not every program respects", closed, "linux", []string{"-rf"}, false},
		{"a flag where flags are allowed", flags, "linux", []string{"-a"}, true},
		{"a slash on Linux is a path", plain, "linux", []string{"/c"}, true},
		{"a slash on Windows is a flag", plain, "windows", []string{"/c"}, false},
		{"a slash on Windows where flags are allowed", flags, "windows", []string{"/c"}, true},
		{"the longest argument", plain, "linux", []string{strings.Repeat("a", MaxArgBytes)}, true},
		{"one byte longer", plain, "linux", []string{strings.Repeat("a", MaxArgBytes+1)}, false},
		{"1 MiB", plain, "linux", []string{strings.Repeat("a", 1<<20)}, false},
		{"the most arguments", plain, "linux", slices.Repeat([]string{"a"}, MaxArgs), true},
		{"one more", plain, "linux", slices.Repeat([]string{"a"}, MaxArgs+1), false},
		{"too many empty ones", plain, "linux", make([]string, 100_000), false},
		{"too much in total", plain, "linux", slices.Repeat([]string{strings.Repeat("a", MaxArgBytes)}, MaxArgTotal/MaxArgBytes+1), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.admitArgs(tt.args, tt.goos)
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, ErrArgs) {
				t.Errorf("err = %v, want ok %v", err, tt.ok)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes: it repeats what it refuses", len(err.Error()))
			}
		})
	}
}

// A refused task starts nothing and is never retried.
func TestRefusedTaskStartsNothing(t *testing.T) {
	started := false
	cfg := Config{Exec: program(t, "argv"), onStart: func(int) { started = true }}
	for name, r := range map[string]*handler.Run{
		"args":           {Content: &proto.Content{Args: []string{"a"}}},
		"key with NUL":   {Content: &proto.Content{IdempotencyKey: "a\x00LD_PRELOAD=/tmp/x.so"}},
		"long key":       {Content: &proto.Content{IdempotencyKey: strings.Repeat("a", 1<<20)}},
		"trace with NUL": {Content: &proto.Content{Traceparent: "\x00"}},
		"kind not UTF-8": {Content: &proto.Content{Kind: "\xff"}},
	} {
		res := run(t, cfg, r)
		if res.Outcome != handler.Fail || res.Code != -1 || res.Reason == "" || started {
			t.Errorf("%s: %+v, started %v, want fail without a start", name, res, started)
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		ok   bool
	}{
		{"nothing", Config{}, false},
		{"an empty program", Config{Exec: []string{"", "a"}}, false},
		{"a bare name", Config{Exec: []string{"uname", "-a"}}, true},
		{"an absolute path", Config{Exec: []string{filepath.Join(t.TempDir(), "x")}}, true},
		{"a relative path", Config{Exec: []string{"./x"}}, false},
		{"a path up", Config{Exec: []string{"../x"}}, false},
		{"a path below", Config{Exec: []string{"bin/x"}}, false},
		{"NUL in a word", Config{Exec: []string{"x", "a\x00"}}, false},
		{"the longest script", Config{Exec: []string{"sh", "-c", strings.Repeat("a", MaxArgBytes)}}, true},
		{"a longer script", Config{Exec: []string{"sh", "-c", strings.Repeat("a", MaxArgBytes+1)}}, false},
		{"a variable to pass on", Config{Exec: []string{"x"}, Env: []string{"LANG"}}, true},
		{"a variable to set, even PATH: the operator decides", Config{Exec: []string{"x"}, Env: []string{"PATH=/opt/bin"}}, true},
		{"no name", Config{Exec: []string{"x"}, Env: []string{"=x"}}, false},
		{"NUL in a value", Config{Exec: []string{"x"}, Env: []string{"A=\x00"}}, false},
		{"the node's own variable", Config{Exec: []string{"x"}, Env: []string{"BALEFIRE_RUN=1"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.cfg); (err == nil) != tt.ok {
				t.Errorf("err = %v, want ok %v", err, tt.ok)
			}
			if err := tt.cfg.check(); err != nil && strings.Contains(err.Error(), "body") {
				t.Errorf("a configuration has no body: %v", err)
			}
		})
	}
}

func TestBatchFilesAreRefusedOnWindows(t *testing.T) {
	for path, ok := range map[string]bool{
		`C:\x\run.exe`: true, `C:\x\run`: true, `C:\x\run.bat`: false, `C:\x\run.CMD`: false, `run.Bat`: false,
		`C:\x\run.bat. `: false, `C:\x\run.bat...`: false, `C:\x.bat\run.exe`: true,
	} {
		if err := refuseBatch(path, "windows"); (err == nil) != ok || (err != nil && !errors.Is(err, ErrProgram)) {
			t.Errorf("%s: %v, want ok %v", path, err, ok)
		}
		if err := refuseBatch(path, "linux"); err != nil {
			t.Errorf("%s on Linux: %v", path, err)
		}
	}
}

// FuzzAdmitArgs checks that admitted arguments can be passed to a program unchanged.
func FuzzAdmitArgs(f *testing.F) {
	for _, word := range metacharacters {
		f.Add(word, false)
	}
	f.Add("-rf", true)
	f.Fuzz(func(t *testing.T, word string, flags bool) {
		cfg := Config{Exec: []string{"x"}, AllowArgs: true, AllowFlags: flags}
		err := cfg.admitArgs([]string{word}, "linux")
		if err != nil && !errors.Is(err, ErrArgs) {
			t.Fatalf("%q: %v, want ErrArgs", word, err)
		}
		if err == nil && (strings.ContainsRune(word, 0) || len(word) > MaxArgBytes || (!flags && strings.HasPrefix(word, "-"))) {
			t.Errorf("%q was admitted", word)
		}
	})
}
