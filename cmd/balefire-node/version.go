package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// A build is what this binary is.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Commit   string `json:"commit,omitempty"`
}

func versionCommand(w *world) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show what this binary is",
		Long:    "Show the version of this binary, the Go it was built with, and the commit where the\nbuild noted one.",
		Example: "  balefire-node version -o json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						b.Commit = s.Value
					}
				}
			}
			return w.show(view{value: b, human: func(p *paper) {
				p.line("balefire-node %s  %s  %s", b.Version, b.Platform, b.Go)
			}})
		},
	}
}
