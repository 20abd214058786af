package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/balefire/balefire/wire"
)

// hostile is a possible answer from a malicious program: OSC 52 for the clipboard, both
// encodings of a cleared screen, a title, a line that looks like one of this program.
const hostile = "ok\x1b]52;c;ZXZpbA==\x07\x1b[2J\u009b2J\u009d0;title\u009c\x7f\rover\u202eback\n✓ SUCCESS in 1s, exit 0\n"

func hasControls(s string) bool { return strings.IndexFunc(s, isControl) >= 0 }

// A result is written to a terminal without control characters, and to a file unchanged.
func TestResultsDoNotSteerTheTerminal(t *testing.T) {
	w, out, _ := newTestApp()
	if err := w.writeResult("01a1f84f", strings.NewReader(hostile)); err != nil || out.String() != hostile {
		t.Errorf("a pipe got %q, %v; want it unchanged", out, err)
	}
	out.Reset()
	w.outTTY = true
	if err := w.writeResult("01a1f84f", strings.NewReader(hostile)); err != nil || hasControls(out.String()) || !strings.Contains(out.String(), "over") {
		t.Errorf("the terminal got %q, %v", out, err)
	}
	out.Reset()
	if err := w.writeResult("01a1f84f", strings.NewReader("no line end")); err != nil || out.String() != "no line end\n" {
		t.Errorf("the terminal got %q, %v; want a newline at the end", out, err)
	}
	for _, binary := range []string{"ELF\x00\x01", "\xff\xfe", strings.Repeat("\xff\xfe", 100), strings.Repeat("a", sniffSize-4) + "\xff\xff\xff\xff"} {
		out.Reset()
		err := w.writeResult("01a1f84f", strings.NewReader(binary))
		if err == nil || !strings.Contains(err.Error(), "--out FILE") || out.Len() > 0 {
			t.Errorf("binary: the terminal got %q, %v; want a refusal", out, err)
		}
	}
	texts := []string{"日本", "naïve\n"}
	for _, first := range []string{"", "a", "ab", "abc"} { // a character across the end of the inspected part
		texts = append(texts, first+strings.Repeat("é", sniffSize), first+strings.Repeat("烽", sniffSize), first+strings.Repeat("🔥", sniffSize))
	}
	for _, cut := range texts {
		out.Reset()
		if err := w.writeResult("01a1f84f", strings.NewReader(cut)); err != nil || strings.TrimSuffix(out.String(), "\n") != strings.TrimSuffix(cut, "\n") {
			t.Errorf("text: %d bytes, %v; want all %d", out.Len(), err, len(cut))
		}
	}
}

// No line of another program's standard error looks like one of this program.
func TestForeignLinesAreQuoted(t *testing.T) {
	got := quoteLines(hostile)
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "  │ ") {
			t.Errorf("line %q is not quoted", line)
		}
	}
	if hasControls(got) || hasControls(sanitizeLine(hostile)) || strings.Contains(sanitizeLine(hostile), "\n") {
		t.Errorf("quoted %q, flat %q", got, sanitizeLine(hostile))
	}
}

// The JSON and YAML of any task are valid, contain no control characters and are equivalent.
func TestDocumentsOfHostileTasks(t *testing.T) {
	task := wire.Task{ID: "01a1f84f", Kind: "k", Ending: wire.Ending{Stderr: hostile, Reason: "\x1b[31m\u0085\u2028\x00\ufeff\ufffe" + hostile}}
	for _, format := range []string{formatJSON, formatJSONL, formatYAML, formatTable} {
		w, out, _ := newTestApp()
		w.flags.output = format
		if err := w.show(taskView(w, task)); err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		said := out.String()
		if format == formatYAML { // it has no escape for them in plain strings, and turns no line
			said = strings.Map(func(r rune) rune {
				if unicode.Is(unicode.Bidi_Control, r) {
					return -1
				}
				return r
			}, said)
		}
		if hasControls(said) {
			t.Errorf("%s has control characters: %q", format, out)
		}
		var got struct {
			Stderr, Reason string
		}
		var err error
		switch format {
		case formatJSON, formatJSONL:
			err = json.Unmarshal(out.Bytes(), &got)
		case formatYAML:
			err = yaml.Unmarshal(out.Bytes(), &got)
		default:
			for line := range bytes.Lines(out.Bytes()) {
				if bytes.HasPrefix(line, []byte("✓ SUCCESS")) {
					t.Errorf("a forged line: %q", line)
				}
			}
			continue
		}
		if err != nil || got.Stderr != task.Stderr || got.Reason != task.Reason {
			t.Errorf("%s: %v; read back %q and %q", format, err, got.Stderr, got.Reason)
		}
	}
}
