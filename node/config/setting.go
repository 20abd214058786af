package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/balefire/balefire/wire"
)

// A Setting is one value of a configuration with its source.
type Setting struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Source  string `json:"source" doc:"default, FILE:LINE or the environment variable"`
	Default string `json:"default"`
	Env     string `json:"env,omitempty"`
	Doc     string `json:"doc"`
}

// A spec describes one setting by the tags of its field in Config.
type spec struct {
	key   string // for example net.listen
	index []int  // of the field, for FieldByIndex
	tag   reflect.StructTag
}

func (s spec) env() string { return "BALEFIRE_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_")) }

// defaultText returns the default for display: its value, or a description of
// how the node computes it.
func (s spec) defaultText() string {
	return cmp.Or(s.tag.Get("defaultText"), s.tag.Get("default"))
}

// limits describes the allowed values.
func (s spec) limits() string {
	low, high, enum := s.tag.Get("min"), s.tag.Get("max"), s.tag.Get("enum")
	switch {
	case enum != "":
		return strings.ReplaceAll(enum, ",", ", ")
	case low != "" && high != "":
		return low + " to " + high
	case low != "":
		return "at least " + low
	case high != "":
		return "at most " + high
	}
	return ""
}

// specs lists the settings of Config in the order of its fields. It leaves out
// the handlers, which are a list of structs and not a value.
var specs = sync.OnceValue(func() []spec {
	return collect(reflect.TypeFor[Config](), "", nil)
})

func collect(t reflect.Type, prefix string, index []int) []spec {
	var out []spec
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(slices.Clone(index), i)
		switch key := prefix + f.Tag.Get("yaml"); {
		case f.Type.Kind() == reflect.Struct:
			out = append(out, collect(f.Type, key+".", at)...)
		case key != handlersKey:
			out = append(out, spec{key: key, index: at, tag: f.Tag})
		}
	}
	return out
}

const handlersKey = "handlers"

func find(key string) (spec, bool) {
	i := slices.IndexFunc(specs(), func(s spec) bool { return s.key == key })
	if i < 0 {
		return spec{}, false
	}
	return specs()[i], true
}

// set parses text into the setting's field of c.
func (s spec) set(c *Config, text string) error {
	f := reflect.ValueOf(c).Elem().FieldByIndex(s.index)
	switch f.Interface().(type) {
	case string:
		f.SetString(text)
	case int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%.40q is not a whole number", text)
		}
		f.SetInt(int64(n))
	case Bytes:
		n, err := ParseBytes(text)
		if err != nil {
			return err
		}
		f.SetInt(int64(n))
	case wire.Duration:
		d, err := wire.ParseDuration(text)
		if err != nil {
			return err
		}
		f.SetInt(int64(d))
	case bool:
		on, err := parseSwitch(text)
		if err != nil {
			return err
		}
		f.SetBool(on)
	case float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n != n || n < 0 || n > maxNumber {
			return fmt.Errorf("%.40q is not a number from 0 to %d", text, maxNumber)
		}
		f.SetFloat(n)
	case []string:
		s.setList(c, splitList(text))
	default:
		panic("config: no parser for settings of type " + f.Type().String())
	}
	return nil
}

// maxNumber is the upper limit of floating-point settings.
const maxNumber = 1_000_000

// parseSwitch parses on, off and the YAML words for them.
func parseSwitch(text string) (bool, error) {
	switch text {
	case "on", "true", "yes":
		return true, nil
	case "off", "false", "no":
		return false, nil
	}
	return false, fmt.Errorf("%.40q is neither on nor off", text)
}

func (s spec) setList(c *Config, items []string) {
	reflect.ValueOf(c).Elem().FieldByIndex(s.index).Set(reflect.ValueOf(items))
}

func (s spec) isList() bool {
	return reflect.TypeFor[Config]().FieldByIndex(s.index).Type.Kind() == reflect.Slice
}

// text formats the setting's value in c in the form that set parses.
func (s spec) text(c *Config) string {
	switch v := reflect.ValueOf(c).Elem().FieldByIndex(s.index).Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	case bool:
		if v {
			return "on"
		}
		return "off"
	default:
		return fmt.Sprint(v)
	}
}

func splitList(text string) []string {
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// suggest returns ": did you mean …?" with the candidate nearest to word, if any.
func suggest(word string, candidates []string) string {
	if best := Nearest(word, candidates); best != "" {
		return ": did you mean " + best + "?"
	}
	return ""
}

// Nearest returns the candidate that word is most likely a typo of, or "" if
// none is close enough.
func Nearest(word string, candidates []string) string {
	best, least := "", 4
	for _, c := range candidates {
		if d := distance(word, c); d < least && d*2 < len(c)+1 {
			best, least = c, d
		}
	}
	return best
}

// distance returns the edit distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
