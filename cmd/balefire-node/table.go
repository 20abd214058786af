package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// A table has rows of cells under headings, aligned by display width: a Chinese character
// takes two cells.
type table struct {
	columns []column
	rows    [][]string
}

// A column is one column of a table.
type column struct {
	name  string
	right bool // for numbers
	wide  bool // only with -o wide
}

func newTable(columns ...column) *table { return &table{columns: columns} }

func col(name string) column      { return column{name: name} }
func num(name string) column      { return column{name: name, right: true} }
func wideOnly(name string) column { return column{name: name, wide: true} }

// row adds a row; an empty cell is shown as a dash.
func (t *table) row(cells ...any) {
	row := make([]string, len(t.columns))
	for i := range row {
		if i < len(cells) {
			row[i] = sanitize(strings.ReplaceAll(fmt.Sprint(cells[i]), "\n", " "))
		}
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// write writes t for a terminal of the given width; 0: no limit. paint colors a cell.
func (t *table) write(w io.Writer, wide bool, columns int, paint func(cell, text string) string) {
	var shown []int
	for i, c := range t.columns {
		if wide || !c.wide {
			shown = append(shown, i)
		}
	}
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = displayWidth(c.name)
		for _, r := range t.rows {
			widths[i] = max(widths[i], displayWidth(r[i]))
		}
	}
	t.fit(shown, widths, columns)
	heading := make([]string, len(t.columns))
	for i, c := range t.columns {
		heading[i] = c.name
	}
	for line, r := range append([][]string{heading}, t.rows...) {
		var b strings.Builder
		for n, i := range shown {
			text := shorten(r[i], widths[i])
			pad := strings.Repeat(" ", widths[i]-displayWidth(text))
			if line > 0 {
				text = paint(r[i], text)
			}
			if n > 0 {
				b.WriteString("  ")
			}
			if t.columns[i].right {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// minColumnWidth is the least width of a text column.
const minColumnWidth = 10

// fit narrows the widest text columns until the table fits.
func (t *table) fit(shown, widths []int, columns int) {
	if columns <= 0 {
		return
	}
	excess := 2*(len(shown)-1) - columns
	for _, i := range shown {
		excess += widths[i]
	}
	for excess > 0 {
		most := -1
		for _, i := range shown {
			if !t.columns[i].right && i > 0 && widths[i] > minColumnWidth && (most < 0 || widths[i] > widths[most]) {
				most = i
			}
		}
		if most < 0 {
			return // it cannot get narrower
		}
		widths[most]--
		excess--
	}
}

// shorten truncates s to a display width.
func shorten(s string, most int) string {
	if displayWidth(s) <= most {
		return s
	}
	n := 0
	for i, r := range s {
		if n += displayWidth(string(r)); n >= most {
			return s[:i] + "…"
		}
	}
	return s
}

// displayWidth returns the number of terminal cells of s.
func displayWidth(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case wideRune(r):
			n += 2
		default:
			n++
		}
	}
	return n
}

func wideRune(r rune) bool {
	k := width.LookupRune(r).Kind()
	return k == width.EastAsianWide || k == width.EastAsianFullwidth
}
