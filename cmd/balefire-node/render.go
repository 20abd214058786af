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

// A view is something to show: the same thing for programs and for people.
type view struct {
	value any              // for json and yaml
	lines []any            // for jsonl, one line each; nil: value is the one line
	human func(p *printer) // for table and wide
}

// A printer is what a view for people is written on.
type printer struct {
	out   io.Writer
	wide  bool
	world *app
}

func (p *printer) line(format string, a ...any) {
	text := sanitize(fmt.Sprintf(format, a...))
	if strings.HasPrefix(text, "! ") {
		text = p.world.colorStdout(yellow, text)
	}
	fmt.Fprintln(p.out, text)
}

func (p *printer) table(t *table) {
	columns := p.world.terminalWidth()
	if p.wide {
		columns = 0
	}
	t.write(p.out, p.wide, columns, func(cell, text string) string {
		if style := stateColor(cell); style != "" {
			return p.world.colorStdout(style, text)
		}
		return text
	})
}

// cut shortens text for a table, unless the widest is asked for.
func (p *printer) cut(text string, n int) string {
	if p.wide {
		return text
	}
	return truncate(text, n)
}

// stateColor is the colour of a cell that is a state; empty: it has none.
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

// show writes v to standard output in the format that -o names. It is the one
// place that does.
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
		v.human(&printer{out: &buf, wide: w.flags.output == formatWide, world: w})
	}
	if err != nil {
		return fmt.Errorf("show the answer: %w", err)
	}
	if _, err := w.out.Write(buf.Bytes()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// humanOutput reports whether the output is read by a person.
func (w *app) humanOutput() bool {
	return w.flags.output == formatTable || w.flags.output == formatWide
}

func (v view) each() []any {
	if v.lines != nil {
		return v.lines
	}
	return []any{v.value}
}

// lines turns the items of a list into what a view wants.
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

// writeYAML writes the fields of the JSON form, in its order: YAML reads JSON,
// so it is parsed as such and written in the block style.
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
