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

// isControl reports whether a character controls a terminal: ASCII and C1 control
// characters, which begin escape sequences, and characters that change the text direction.
func isControl(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// sanitize replaces control characters in text from an untrusted source.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// sanitizeLine returns sanitized text on one line, so that it cannot forge another line.
func sanitizeLine(s string) string {
	return strings.ReplaceAll(sanitize(strings.TrimSpace(s)), "\n", " ")
}

// quoteLines returns sanitized text from an untrusted source, each line with a prefix that
// no other output line has.
func quoteLines(s string) string {
	return "  │ " + strings.ReplaceAll(sanitize(strings.TrimRight(s, "\n")), "\n", "\n  │ ")
}

// errBinary is the error for a result that is not printed on a terminal because it is not
// text.
func errBinary(id string) error {
	return fmt.Errorf("the result is not text and is not written to the terminal: balefire-node task result %s --out FILE", shortTask(id))
}

// sniffSize is how much of a result is checked before it is written to a terminal.
const sniffSize = 8 << 10

// writeResult writes the result of a task to standard output, unchanged to a file or a
// pipe. On a terminal it replaces control characters and refuses binary data.
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
	if len(head) == sniffSize {
		for i := 1; i < utf8.UTFMax && !utf8.Valid(head); i++ { // the last character may be cut
			head = head[:len(head)-1]
		}
	}
	if !isText(head) {
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
		if c == '\r' { // it would overwrite the line
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

// escapeControls replaces control characters in a JSON document by their JSON escapes. They
// can occur only inside strings.
func escapeControls(doc []byte) []byte {
	unsafe := func(r rune) bool { return isControl(r) || r == 0xFEFF || r == 0xFFFE || r == 0xFFFF } // YAML does not allow the last three
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
