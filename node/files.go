package node

import (
	"fmt"
	"os"
	"path/filepath"
)

// The parts of a node's folder.
const (
	identityDir    = "identity"
	storeDir       = "store"
	blobDir        = "blob"
	runDir         = "run"
	membershipFile = "membership.json"
	engineFile     = "ENGINE"
)

// writeFile replaces path with b: after a crash the file is the old or the new one.
func writeFile(path string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
