package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isControl reports whether a character steers a terminal: controls of ASCII and C1, which
// begin escape sequences, and those that turn the direction of text.
func isControl(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// sanitize takes what steers a terminal out of text that somebody else wrote.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// sanitizeLine is clean text on one line: it forges no other.
func sanitizeLine(s string) string {
	return strings.ReplaceAll(sanitize(strings.TrimSpace(s)), "\n", " ")
}

// quoteLines is clean text of somebody else, each line behind a bar that no line of this
// program has.
func quoteLines(s string) string {
	return "  │ " + strings.ReplaceAll(sanitize(strings.TrimRight(s, "\n")), "\n", "\n  │ ")
}

// errBinary refuses to write a result to a terminal.
func errBinary(id string) error {
	return fmt.Errorf("the result is no text, so it is not written to the terminal: balefire-node task result %s --out FILE", shortTask(id))
}

// sniffSize is how much of a result is looked at before it is written to a terminal.
const sniffSize = 8 << 10

// writeResult writes the result of a task to standard output: as it is to a file or a
// pipe. On a terminal what would steer that is replaced, and what is no text refused.
func (w *app) writeResult(id string, r io.Reader) error {
	if !w.outTTY {
		_, err := io.Copy(w.out, r)
		return err
	}
	in, out := bufio.NewReaderSize(r, sniffSize), bufio.NewWriter(w.out)
	head, err := in.Peek(sniffSize)
	if err != nil && err != io.EOF {
		return err
	}
	if bytes.IndexByte(head, 0) >= 0 || !utf8.Valid(head[:max(0, len(head)-utf8.UTFMax)]) {
		return errBinary(id)
	}
	last := '\n'
	for {
		c, _, err := in.ReadRune()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if isControl(c) && c != '\r' {
			c = utf8.RuneError
		}
		if c == '\r' { // it would write over the line
			continue
		}
		if _, err := out.WriteRune(c); err != nil {
			return err
		}
		last = c
	}
	if last != '\n' {
		if _, err := out.WriteRune('\n'); err != nil {
			return err
		}
	}
	return out.Flush()
}

// escapeControls writes what steers a terminal in a document of JSON as JSON can: it is there
// in strings alone.
func escapeControls(doc []byte) []byte {
	unsafe := func(r rune) bool { return isControl(r) || r == 0xFEFF || r == 0xFFFE || r == 0xFFFF } // the last three no YAML may have
	if bytes.IndexFunc(doc, unsafe) < 0 {
		return doc
	}
	var b bytes.Buffer
	for _, r := range string(doc) {
		if unsafe(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}
