package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Only output for people that is longer than the terminal is paged.
func TestPager(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines int
		set   func(*app)
		want  []string // nil: not paged
	}{
		{"long", 24, nil, []string{"less"}},
		{"it fits", 23, nil, nil},
		{"not a terminal", 100, func(w *app) { w.outTTY = false }, nil},
		{"--no-pager", 100, func(w *app) { w.flags.noPager = true }, nil},
		{"for programs", 100, func(w *app) { w.flags.output = formatJSON }, nil},
		{"PAGER", 100, func(w *app) { w.environ = append(w.environ, "PAGER=more -s") }, []string{"more", "-s"}},
		{"BALEFIRE_PAGER first", 100, func(w *app) { w.environ = append(w.environ, "BALEFIRE_PAGER=most", "PAGER=more") }, []string{"most"}},
		{"off", 100, func(w *app) { w.environ = append(w.environ, "PAGER=") }, nil},
		{"cat", 100, func(w *app) { w.environ = append(w.environ, "PAGER=cat") }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, out, _ := newTestApp()
			w.outTTY, w.environ, w.flags.output = true, []string{"LINES=24"}, formatTable
			var got []string
			var shown string
			w.runPager = func(argv []string, text []byte) error {
				got, shown = argv, string(text)
				return nil
			}
			if tt.set != nil {
				tt.set(w)
			}
			text := strings.Repeat("line\n", tt.lines)
			if err := w.show(view{value: text, human: func(p *printer) { io.WriteString(p.out, text) }}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("pager %q, want %q", got, tt.want)
			}
			if paged := tt.want != nil; paged != (shown == text) || paged == (out.Len() > 0) {
				t.Errorf("paged %q, written %q", shown, out)
			}
		})
	}
}

// A pager that cannot be started costs nothing: the output is written as it is.
func TestMissingPager(t *testing.T) {
	w, out, _ := newTestApp()
	w.outTTY, w.flags.output, w.runPager = true, formatTable, startPager
	w.environ = []string{"LINES=2", "PAGER=" + filepath.Join(t.TempDir(), "missing")}
	const text = "one\ntwo\nthree\n"
	if err := w.show(view{human: func(p *printer) { io.WriteString(p.out, text) }}); err != nil || out.String() != text {
		t.Errorf("%q, %v", out, err)
	}
}

// The pager gets the whole text, and its end is waited for.
func TestPagerGetsTheText(t *testing.T) {
	if os.Getenv("BALEFIRE_TEST_PAGER") != "" {
		text, _ := io.ReadAll(os.Stdin)
		if err := os.WriteFile(os.Getenv("BALEFIRE_TEST_PAGER"), append(text, os.Getenv("LESS")...), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	file := filepath.Join(t.TempDir(), "shown")
	t.Setenv("BALEFIRE_TEST_PAGER", file)
	t.Setenv("LESS", "")
	os.Unsetenv("LESS")
	text := bytes.Repeat([]byte("a line\n"), 100_000)
	if err := startPager([]string{os.Args[0], "-test.run=^TestPagerGetsTheText$"}, text); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(text)+"FRX" {
		t.Errorf("the pager got %d bytes of %d, %v", len(got), len(text), err)
	}
	if err := startPager([]string{filepath.Join(t.TempDir(), "missing")}, text); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing pager: %v", err)
	}
}
