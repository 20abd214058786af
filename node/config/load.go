package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const maxFile = 1 << 20 // limit of one configuration file in bytes

// A Source describes where to read a configuration from.
type Source struct {
	File     string   // the YAML file; conf.d in the same folder is read after it
	Required bool     // a missing File is an error, because it was named explicitly
	Environ  []string // NAME=value, as returned by os.Environ
}

// A Loaded is a valid configuration with the origin of each of its values.
type Loaded struct {
	Config
	Files []string // the files read, in order

	origin   map[string]string // origin of a value by key; absent: default
	handlers map[string]string // origin of a handler by kind
}

// Load reads, merges and validates a configuration. The error lists every
// problem with its location.
func Load(src Source) (*Loaded, error) {
	l := &Loaded{origin: map[string]string{}, handlers: map[string]string{}}
	if err := l.defaults(); err != nil {
		return nil, err
	}
	files, err := src.files()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range files {
		errs = append(errs, l.file(path))
	}
	errs = append(errs, l.environment(src.Environ))
	if err := errors.Join(errs...); err != nil {
		return nil, err // a value that could not be read would be checked as its default
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Loaded) defaults() error {
	for _, s := range specs() {
		if text := s.tag.Get("default"); text != "" {
			if err := s.set(&l.Config, text); err != nil {
				return fmt.Errorf("default of %s: %w", s.key, err)
			}
		}
	}
	return nil
}

// files lists the existing files, the main one first.
func (src Source) files() ([]string, error) {
	if src.File == "" {
		return nil, nil
	}
	var out []string
	switch _, err := os.Stat(src.File); {
	case err == nil:
		out = append(out, src.File)
	case src.Required || !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	dir := filepath.Join(filepath.Dir(src.File), "conf.d")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	for _, e := range entries { // sorted by name
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".yaml") && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

func (l *Loaded) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fmt.Errorf("read configuration %s: %w", path, err)
	}
	if len(b) > maxFile {
		return fmt.Errorf("%s: larger than 1 MiB: not a configuration file", path)
	}
	l.Files = append(l.Files, path)
	return l.merge(path, b)
}

// environment applies the BALEFIRE_… variables. A variable that starts with the
// name of a section but names no setting is rejected as a typo. All others,
// such as those set for a handler's program, are ignored.
func (l *Loaded) environment(environ []string) error {
	var errs []error
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "BALEFIRE_") {
			continue
		}
		i := slices.IndexFunc(specs(), func(s spec) bool { return s.env() == name })
		switch {
		case i >= 0:
			if err := specs()[i].set(&l.Config, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			l.origin[specs()[i].key] = name
		case looksLikeSetting(name):
			errs = append(errs, fmt.Errorf("%s: no such setting%s", name, suggest(name, envNames())))
		}
	}
	return errors.Join(errs...)
}

// looksLikeSetting reports whether the name of a variable starts with a section's name.
func looksLikeSetting(name string) bool {
	return slices.ContainsFunc(specs(), func(s spec) bool {
		section, _, ok := strings.Cut(s.key, ".")
		return ok && strings.HasPrefix(name, "BALEFIRE_"+strings.ToUpper(section)+"_")
	})
}

func envNames() []string {
	var out []string
	for _, s := range specs() {
		out = append(out, s.env())
	}
	return out
}

// Settings lists every setting with its value and source.
func (l *Loaded) Settings() []Setting {
	var out []Setting
	for _, s := range specs() {
		set := Setting{Key: s.key, Value: s.text(&l.Config), Source: "default", Default: s.defaultText(), Env: s.env(), Doc: s.tag.Get("doc")}
		if from, ok := l.origin[s.key]; ok {
			set.Source = from
		} else if s.tag.Get("default") == "" {
			set.Value = set.Default // computed by the node
		}
		out = append(out, set)
	}
	for _, h := range l.Handlers {
		out = append(out, Setting{
			Key: handlersKey + "." + h.Kind, Value: handlerText(h), Source: l.handlers[h.Kind], Default: "none", Doc: "a handler",
		})
	}
	return out
}

// Changed lists the keys whose values differ between two configurations. It
// leaves the values out because they may be private.
func (l *Loaded) Changed(other *Loaded) []string {
	before, keys := map[string]string{}, []string{}
	for _, s := range l.Settings() {
		before[s.Key] = s.Value
	}
	for _, s := range other.Settings() {
		if v, ok := before[s.Key]; !ok || v != s.Value {
			keys = append(keys, s.Key)
		}
		delete(before, s.Key)
	}
	for key := range before {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
