package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAppendLines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lines")
	now := time.Date(2026, 11, 22, 14, 0, 0, 0, time.UTC)
	long := strings.Repeat("x", 9000)
	for _, tt := range []struct{ name, before, lines, want string }{
		{"a new file", "", "a\n", "a\n"},
		{"behind what is there", "a\n", "b\nc\n", "a\nb\nc\n"},
		{"a torn line is removed", "a\nhalf", "b\n", "a\nb\n"},
		{"a long one too", "a\n" + long, "b\n", "a\nb\n"},
		{"and the only one", long, "b\n", "b\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tt.before), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.before == "" {
				os.Remove(path)
			}
			if err := AppendLines(path, []byte(tt.lines), now); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != tt.want {
				t.Errorf("%.80q, %v, want %q", got, err, tt.want)
			}
		})
	}
	if err := os.WriteFile(path, []byte("full\ntorn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := appendLines(path, []byte("next\n"), 5, now); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path + ".20261122T140000.000")
	if got, e := os.ReadFile(path); string(old) != "full\n" || string(got) != "next\n" {
		t.Errorf("%q, %v and %q, %v", old, err, got, e)
	}
	if err := AppendLines(filepath.Join(path, "no"), []byte("x\n"), now); err == nil {
		t.Error("a file that cannot be made is no error")
	}
}
