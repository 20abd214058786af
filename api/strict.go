package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a JSON document; ours need four levels.
const maxDepth = 32

// checkObject checks that b is one JSON object, without duplicate names (different readers
// would use different values) and with bounded nesting. known, if not nil, is the set of
// allowed names. It does not check the whole grammar: decoding does.
func checkObject(b []byte, known func(name string) bool) error {
	w := scanner{b: b}
	return w.document(known)
}

// elements returns the raw values of a JSON array, at most max. The decoder of an element checks it.
func elements(b []byte, max int) ([][]byte, error) {
	w := scanner{b: b}
	if w.next() != '[' {
		return nil, errors.New("a JSON array is expected")
	}
	var out [][]byte
	w.i++
	for first := true; ; first = false {
		done, err := w.sep(']', first)
		if done || err != nil {
			return out, errors.Join(err, w.trailing(done))
		}
		if len(out) == max {
			return nil, errTooMany
		}
		start := w.i
		if err := w.step(); err != nil {
			return nil, err
		}
		out = append(out, b[start:w.i])
	}
}

var errTooMany = errors.New("too many")

// A scanner steps over JSON values without decoding them.
type scanner struct {
	b     []byte
	i     int
	depth int

	noted    string // a member of the outermost object
	from, to int    // start and end of its value
	apart    bool   // who decodes that value checks it
}

func (w *scanner) document(known func(string) bool) error {
	if w.next() != '{' {
		return errors.New("a JSON object is expected")
	}
	if err := w.value(known); err != nil {
		return err
	}
	if w.next() != 0 || w.i < len(w.b) {
		return fmt.Errorf("something follows the JSON object at byte %d", w.i)
	}
	return nil
}

// next skips white space and returns the next byte, 0 at the end.
func (w *scanner) next() byte {
	for ; w.i < len(w.b); w.i++ {
		switch c := w.b[w.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (w *scanner) trailing(done bool) error {
	if done && (w.next() != 0 || w.i < len(w.b)) {
		return fmt.Errorf("something follows the JSON array at byte %d", w.i)
	}
	return nil
}

func (w *scanner) value(known func(string) bool) error {
	switch w.next() {
	case '{':
		return w.nest(func() error { return w.object(known) })
	case '[':
		return w.nest(w.array)
	case '"':
		_, err := w.skip()
		return err
	}
	start := w.i
	for w.i < len(w.b) && strings.IndexByte(" \t\r\n,:]}[{\"", w.b[w.i]) < 0 {
		w.i++
	}
	if w.i == start {
		return w.bad("a value")
	}
	return nil
}

// step steps over a value, of which it checks only where it ends.
func (w *scanner) step() error {
	for depth := 0; ; {
		switch w.next() {
		case '{', '[':
			depth++
			w.i++
		case '}', ']':
			if depth == 0 {
				return w.bad("a value")
			}
			depth--
			w.i++
		case ',', ':':
			if depth == 0 {
				return w.bad("a value")
			}
			w.i++
			continue
		default:
			if err := w.value(nil); err != nil {
				return err
			}
		}
		if depth == 0 {
			return nil
		}
	}
}

func (w *scanner) nest(f func() error) error {
	if w.depth++; w.depth > maxDepth {
		return fmt.Errorf("the JSON nests deeper than %d levels", maxDepth)
	}
	w.i++
	err := f()
	w.depth--
	return err
}

func (w *scanner) object(known func(string) bool) error {
	seen := map[string]struct{}{}
	for first := true; ; first = false {
		done, err := w.sep('}', first)
		if done || err != nil {
			return err
		}
		name, err := w.name()
		if err != nil {
			return err
		}
		if _, twice := seen[name]; twice {
			return fmt.Errorf("field %.60q is given twice", name)
		}
		if known != nil && !known(name) {
			return fmt.Errorf("unknown field %.60q", name)
		}
		seen[name] = struct{}{}
		if w.next() != ':' {
			return w.bad("a colon")
		}
		w.i++
		w.next()
		from, noted := w.i, w.depth == 1 && name == w.noted
		if noted && w.apart {
			err = w.step()
		} else {
			err = w.value(nil)
		}
		if err != nil {
			return err
		}
		if noted {
			w.from, w.to = from, w.i
		}
	}
}

func (w *scanner) array() error {
	for first := true; ; first = false {
		done, err := w.sep(']', first)
		if done || err != nil {
			return err
		}
		if err := w.value(nil); err != nil {
			return err
		}
	}
}

// sep steps over a comma or the end of an object.
func (w *scanner) sep(end byte, first bool) (done bool, err error) {
	switch c := w.next(); {
	case c == end:
		w.i++
		return true, nil
	case first && c != 0:
		return false, nil
	case c != ',':
		return false, w.bad("a comma or the end")
	}
	w.i++
	if c := w.next(); c == end || c == 0 {
		return false, w.bad("a value")
	}
	return false, nil
}

// name steps over a string and returns its value.
func (w *scanner) name() (string, error) {
	if w.next() != '"' {
		return "", w.bad("a name")
	}
	start := w.i
	plain, err := w.skip()
	if err != nil {
		return "", err
	}
	if in := w.b[start+1 : w.i-1]; plain && utf8.Valid(in) {
		return string(in), nil
	}
	var s string
	if err := json.Unmarshal(w.b[start:w.i], &s); err != nil {
		return "", w.bad("a well-formed string")
	}
	return s, nil
}

// skip steps over a string. plain reports that nothing in it is escaped.
func (w *scanner) skip() (plain bool, err error) {
	i, quote := w.i+1, 0
	for plain = true; ; plain = false {
		if quote < i {
			n := bytes.IndexByte(w.b[min(i, len(w.b)):], '"')
			if n < 0 {
				return false, w.bad("the end of a string")
			}
			quote = i + n
		}
		n := bytes.IndexByte(w.b[i:quote], '\\')
		if n < 0 {
			w.i = quote + 1
			return plain, nil
		}
		i += n + 2
	}
}

func (w *scanner) bad(want string) error {
	return fmt.Errorf("the JSON is broken at byte %d: %s is expected", w.i, want)
}
