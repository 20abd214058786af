package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/balefire/balefire/disk"
)

// markName is the file in a store's folder that names its engine.
const markName = "ENGINE"

// MarkEngine records that the folder dir belongs to the named engine, and creates
// it if needed. If it belongs to another engine the error is [ErrOtherEngine]. Call
// it before the engine's own open, which might not recognize foreign files.
func MarkEngine(dir, engine string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create store folder: %w", err)
	}
	path := filepath.Join(dir, markName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return writeMark(dir, engine)
	}
	if err != nil {
		return fmt.Errorf("read the engine's name: %w", err)
	}
	if got := strings.TrimSpace(string(b)); got != engine {
		return fmt.Errorf("%w: %s was written by %q, but the configuration names %q; set the engine back, or give this one another folder", ErrOtherEngine, dir, got, engine)
	}
	return nil
}

// writeMark marks an empty folder. A folder with files but without a mark has
// lost it, or never was a store.
func writeMark(dir, engine string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the store folder: %w", err)
	}
	files = slices.DeleteFunc(files, func(f fs.DirEntry) bool { return f.Name() == lockName || f.Name() == markName+".tmp" })
	if len(files) > 0 {
		return fmt.Errorf("%w: %s has files (%s, ...) but no file %s that names the engine that wrote them", ErrOtherEngine, dir, files[0].Name(), markName)
	}
	if err := disk.WriteFile(filepath.Join(dir, markName), []byte(engine+"\n")); err != nil {
		return fmt.Errorf("name the engine: %w", err)
	}
	return nil
}
