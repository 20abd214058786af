package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// linked is the version that the linker was given, "" without.
var linked string

// version is what this binary says that it is, to people and to peers.
var version = readBuild().Version

// A build is what this binary is.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty" doc:"built from files that differ from the commit"`
}

// readBuild says what this binary is.
func readBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(linked, info)
}

// buildOf reads what the go command noted in the binary: the version of the module where it
// was installed as one, else the commit that it was built from.
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

// String is what version and --version print behind the name of the program.
func (b build) String() string { return fmt.Sprintf("%s  %s  %s", b.Version, b.Platform, b.Go) }

func versionCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show what this binary is",
		Long:    "Show the version of this binary, the Go it was built with, and the commit where the\nbuild noted one.",
		Example: "  balefire-node version -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			return w.show(view{value: b, human: func(p *printer) { p.line("balefire-node %s", b) }})
		},
	}
}
