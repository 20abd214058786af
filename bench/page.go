package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A page is the output of a run.
type page struct {
	head   string // introduction, in Markdown
	tables []*table
}

// A table is one part of the page.
type table struct {
	title  string
	intro  string // how it was measured
	head   []string
	rows   [][]string
	bounds string // the bottleneck
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, texts)
}

func (p *page) write(w io.Writer) error {
	var b strings.Builder
	b.WriteString(p.head)
	for _, t := range p.tables {
		t.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *table) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n", t.title)
	if t.intro != "" {
		fmt.Fprintf(b, "%s\n\n", t.intro)
	}
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	fmt.Fprintf(b, "|%s\n", strings.Repeat(" --- |", len(t.head)))
	for _, r := range t.rows {
		line(r)
	}
	if t.bounds != "" {
		fmt.Fprintf(b, "\nLimited by: %s\n", t.bounds)
	}
}

// The verdicts for a figure with a target.
const (
	met    = "met"
	missed = "**missed**"
)

// verdict returns whether a figure meets its target.
func verdict(ok bool) string {
	if ok {
		return met
	}
	return missed
}

// missed returns the missed targets: the title of the table and the cells of the row up to
// the verdict.
func (p *page) missed() (all []string) {
	for _, t := range p.tables {
		for _, r := range t.rows {
			for i, cell := range r {
				if cell != missed {
					continue
				}
				all = append(all, fmt.Sprintf("%s: %s", t.title, strings.Join(slices.DeleteFunc(slices.Clone(r[:i]), func(s string) bool { return s == "" || s == met || s == missed }), ", ")))
			}
		}
	}
	return all
}
