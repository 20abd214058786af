package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// linked is the version that the linker set, or empty.
var linked string

// version is the version of this binary for people and peers.
var version = readBuild().Version

// A build describes this binary.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty" doc:"built from files that differ from the commit"`
}

// readBuild returns the build information of this binary.
func readBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(linked, info)
}

// buildOf evaluates what the go command recorded in the binary: the module version if it
// was installed as a module, else the commit that it was built from.
func buildOf(linked string, info *debug.BuildInfo) build {
	b := build{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
		if m := info.Main.Version; m != "(devel)" {
			b.Version = cmp.Or(b.Version, m)
		}
	}
	if b.Version == "" && b.Commit != "" {
		b.Version = "dev-" + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			b.Version += "-dirty"
		}
	}
	b.Version = cmp.Or(b.Version, "dev")
	return b
}

// String is what version and --version print after the name of the program.
func (b build) String() string { return fmt.Sprintf("%s  %s  %s", b.Version, b.Platform, b.Go) }

func versionCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of this binary",
		Long:    "Show the version of this binary, its Go version, and the commit if the build\nrecorded one.",
		Example: "  balefire-node version -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			return w.show(view{value: b, human: func(p *printer) { p.line("balefire-node %s", b) }})
		},
	}
}
