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

	"github.com/balefire/balefire/settings"
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
	l := newLoaded()
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

// newLoaded returns the defaults.
func newLoaded() *Loaded {
	l := &Loaded{origin: map[string]string{}, handlers: map[string]string{}}
	settings.SetDefaults(&l.Config)
	return l
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
	case src.Required && errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w: check the path in --config or BALEFIRE_CONFIG, or create the file with balefire-node init", err)
	case !errors.Is(err, fs.ErrNotExist):
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
		i := slices.IndexFunc(fields(), func(f settings.Field) bool { return env(f.Key) == name })
		switch {
		case i >= 0:
			if err := fields()[i].Set(&l.Config, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			l.origin[fields()[i].Key] = name
		case looksLikeSetting(name):
			errs = append(errs, fmt.Errorf("%s: no such setting%s", name, settings.Suggest(name, envNames())))
		}
	}
	return errors.Join(errs...)
}

// looksLikeSetting reports whether the name of a variable starts with a section's name.
func looksLikeSetting(name string) bool {
	return slices.ContainsFunc(fields(), func(f settings.Field) bool {
		section, _, ok := strings.Cut(f.Key, ".")
		return ok && strings.HasPrefix(name, "BALEFIRE_"+strings.ToUpper(section)+"_")
	})
}

func envNames() []string {
	var out []string
	for _, f := range fields() {
		out = append(out, env(f.Key))
	}
	return out
}

// A Setting is one value of a configuration with its source.
type Setting struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Source  string `json:"source" doc:"default, FILE:LINE or the environment variable"`
	Default string `json:"default"`
	Env     string `json:"env,omitempty"`
	Doc     string `json:"doc"`
}

// List lists every setting with its value and source.
func (l *Loaded) List() []Setting {
	var out []Setting
	for _, f := range fields() {
		set := Setting{Key: f.Key, Value: f.Text(&l.Config), Source: "default", Default: f.Default(), Env: env(f.Key), Doc: f.Tag.Get("doc")}
		if from, ok := l.origin[f.Key]; ok {
			set.Source = from
		} else if f.Tag.Get("default") == "" {
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
	for _, s := range l.List() {
		before[s.Key] = s.Value
	}
	for _, s := range other.List() {
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
