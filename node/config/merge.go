package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

// merge applies one file on top of the current values. A list replaces the
// earlier one, except handlers and dangerous, which accumulate so that each file
// in conf.d can add its own entries.
func (l *Loaded) merge(path string, b []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // nothing but comments
		}
		return fmt.Errorf("%s: %s", path, yamlText(err))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:%d: a second document: a configuration file contains one", path, more.Line)
	}
	m := merger{loaded: l, path: path}
	if len(doc.Content) == 1 {
		m.section(doc.Content[0], "")
	}
	return errors.Join(m.errs...)
}

// yamlText drops the parser's own name from its error.
func yamlText(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n  ", " "), "yaml: ")
}

// A merger applies one file and collects its errors.
type merger struct {
	loaded *Loaded
	path   string
	errs   []error
}

func (m *merger) fail(n *yaml.Node, format string, a ...any) {
	m.errs = append(m.errs, fmt.Errorf("%s:%d: %s", m.path, n.Line, fmt.Sprintf(format, a...)))
}

// section reads a mapping whose keys are settings or sections.
func (m *merger) section(n *yaml.Node, prefix string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	where := "a configuration file"
	if prefix != "" {
		where = strings.TrimSuffix(prefix, ".")
	}
	if n.Kind != yaml.MappingNode {
		m.fail(n, "%s must be a mapping: lines of key: value", where)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		if seen[key] {
			m.fail(k, "%s is set twice", key)
			continue
		}
		seen[key] = true
		m.value(key, k, v)
	}
}

func (m *merger) value(key string, k, v *yaml.Node) {
	f, isSetting := find(key)
	switch {
	case k.Kind != yaml.ScalarNode || k.Value == "":
		m.fail(k, "a key must be a non-empty word")
	case key == handlersKey:
		m.handlers(v)
	case isSetting:
		m.setting(f, v)
	case isSection(key):
		m.section(v, key+".")
	default:
		m.fail(k, "unknown setting %.80q%s", key, settings.Suggest(key, keys()))
	}
}

func (m *merger) setting(f settings.Field, v *yaml.Node) {
	if v.Kind == yaml.AliasNode {
		v = v.Alias
	}
	switch {
	case v.Kind == yaml.ScalarNode && v.Tag == "!!null":
		return // not set
	case v.Kind == yaml.SequenceNode && f.IsList():
		items := make([]string, 0, len(v.Content))
		for _, item := range v.Content {
			if item.Kind != yaml.ScalarNode || item.Tag != "!!str" {
				m.fail(item, "%s must be a list of words", f.Key)
				return
			}
			items = append(items, item.Value)
		}
		if f.Key == "dangerous" {
			items = append(slices.Clone(m.loaded.Dangerous), items...)
		}
		f.SetList(&m.loaded.Config, items)
	case f.IsList():
		m.fail(v, "%s must be a list: write one entry per line, each after a dash", f.Key)
		return
	case v.Kind != yaml.ScalarNode:
		m.fail(v, "%s must be a single value", f.Key)
		return
	default:
		if err := f.Set(&m.loaded.Config, v.Value); err != nil {
			m.fail(v, "%s: %v", f.Key, err)
			return
		}
	}
	m.loaded.origin[f.Key] = fmt.Sprintf("%s:%d", m.path, v.Line)
}

func (m *merger) handlers(v *yaml.Node) {
	if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
		return
	}
	if v.Kind != yaml.SequenceNode {
		m.fail(v, "handlers must be a list: write each handler after a dash")
		return
	}
	for _, item := range v.Content {
		var h wire.HandlerSpec
		if !m.knownFields(item) {
			continue
		}
		if err := item.Decode(&h); err != nil {
			m.fail(item, "handler: %s", yamlText(err))
			continue
		}
		if first, ok := m.loaded.handlers[h.Kind]; ok {
			m.fail(item, "handler %.60q is already defined at %s", h.Kind, first)
			continue
		}
		m.loaded.handlers[h.Kind] = fmt.Sprintf("%s:%d", m.path, item.Line)
		m.loaded.Handlers = append(m.loaded.Handlers, h)
	}
}

// knownFields reports whether item is a mapping with only the fields of a handler.
func (m *merger) knownFields(item *yaml.Node) bool {
	if item.Kind == yaml.AliasNode {
		item = item.Alias
	}
	if item.Kind != yaml.MappingNode {
		m.fail(item, "a handler must be a mapping: lines of key: value, the first one after the dash")
		return false
	}
	good := true
	for i := 0; i < len(item.Content); i += 2 {
		if k := item.Content[i]; !slices.Contains(handlerFields(), k.Value) {
			m.fail(k, "unknown setting %.80q of a handler%s", k.Value, settings.Suggest(k.Value, handlerFields()))
			good = false
		}
	}
	return good
}

func handlerFields() (names []string) {
	t := reflect.TypeFor[wire.HandlerSpec]()
	for i := range t.NumField() {
		if name := yamlName(t.Field(i)); name != "-" { // a function of an embedding program
			names = append(names, name)
		}
	}
	return names
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

func handlerText(h wire.HandlerSpec) string {
	b, err := json.Marshal(h)
	if err != nil {
		return err.Error() // cannot happen: strings and numbers only
	}
	return string(b)
}

func isSection(key string) bool {
	return slices.ContainsFunc(fields(), func(f settings.Field) bool { return strings.HasPrefix(f.Key, key+".") })
}

// keys lists the names of all settings and sections.
func keys() []string {
	out := []string{handlersKey}
	for _, f := range fields() {
		out = append(out, f.Key)
		if section, _, ok := strings.Cut(f.Key, "."); ok && !slices.Contains(out, section) {
			out = append(out, section)
		}
	}
	return out
}
