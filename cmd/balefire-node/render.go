package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The formats of -o.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatJSONL = "jsonl"
	formatYAML  = "yaml"
)

var formats = []string{formatTable, formatWide, formatJSON, formatJSONL, formatYAML}

// A view is a value to print, for programs and for people.
type view struct {
	value any              // for json and yaml
	lines []any            // for jsonl, one line each; nil: value is the one line
	human func(p *printer) // for table and wide
}

// A printer writes the form of a view for people.
type printer struct {
	out  io.Writer
	wide bool
	app  *app
}

func (p *printer) line(format string, a ...any) {
	text := sanitize(fmt.Sprintf(format, a...))
	if strings.HasPrefix(text, "! ") {
		text = p.app.colorStdout(yellow, text)
	}
	fmt.Fprintln(p.out, text)
}

func (p *printer) table(t *table) {
	columns, _ := p.app.terminalSize()
	if p.wide {
		columns = 0
	}
	t.write(p.out, p.wide, columns, func(cell, text string) string {
		if style := stateColor(cell); style != "" {
			return p.app.colorStdout(style, text)
		}
		return text
	})
}

// truncate shortens text for a table, except in wide output.
func (p *printer) truncate(text string, n int) string {
	if p.wide {
		return text
	}
	return truncate(text, n)
}

// stateColor returns the color of a cell that is a state; empty: none.
func stateColor(cell string) string {
	switch cell {
	case "SUCCESS", "CONNECTED", "ALIVE":
		return green
	case "FAILED", "DEAD_LETTER", "TIMEOUT", "EXPIRED", "INDETERMINATE", "DEAD", "REVOKED":
		return red
	case "RETRYING", "CANCELLED", "SUSPECT", "BLOCKED", "OFFLINE":
		return yellow
	}
	return ""
}

// show writes v to standard output in the format of -o. All data is written here.
func (w *app) show(v view) error {
	var buf bytes.Buffer
	var err error
	switch w.flags.output {
	case formatJSON:
		err = writeJSON(&buf, v.value, "  ")
	case formatJSONL:
		for _, line := range v.each() {
			if err = writeJSON(&buf, line, ""); err != nil {
				break
			}
		}
	case formatYAML:
		err = writeYAML(&buf, v.value)
	default:
		v.human(&printer{out: &buf, wide: w.flags.output == formatWide, app: w})
	}
	if err != nil {
		return fmt.Errorf("show the answer: %w", err)
	}
	if w.humanOutput() && w.page(buf.Bytes()) {
		return nil
	}
	if _, err := w.out.Write(buf.Bytes()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// humanOutput reports whether the output is for people.
func (w *app) humanOutput() bool {
	return w.flags.output == formatTable || w.flags.output == formatWide
}

func (v view) each() []any {
	if v.lines != nil {
		return v.lines
	}
	return []any{v.value}
}

// lines converts the items of a list to the lines of a view.
func lines[T any](items []T) []any {
	out := make([]any, len(items))
	for i := range items {
		out[i] = items[i]
	}
	return out
}

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeControls(b.Bytes()))
	return err
}

// writeYAML writes the fields of the JSON form in their order: JSON is valid YAML, so it is
// parsed as YAML and written in block style.
func writeYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(escapeControls(b), &doc); err != nil {
		return err
	}
	blockStyle(&doc)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	return enc.Close()
}

func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}
