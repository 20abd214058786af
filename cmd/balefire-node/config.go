package main

import (
	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node/config"
)

func configCommand(w *app) *cobra.Command {
	docs := &cobra.Command{
		Use: "docs", Short: "Write docs/configuration.md", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := w.out.Write([]byte(config.Markdown()))
			return err
		},
	}
	return group("config", "Show the configuration and check it",
		"The configuration is one YAML file, the files in the conf.d folder next to it, and\nthe BALEFIRE_ environment variables. Later ones override earlier ones.",
		configShow(w), configPath(w), configValidate(w), docs)
}

func configShow(w *app) *cobra.Command {
	var effective bool
	c := &cobra.Command{
		Use: "show", Short: "Show the settings and where they come from",
		Long:    "Show the settings that are set and where each is set, or with --effective all of\nthem. It reads the files as the next start will.",
		Example: "  balefire-node config show --effective", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, _, err := w.config()
			if err != nil {
				return err
			}
			settings := []config.Setting{}
			for _, s := range l.List() {
				if effective || s.Source != "default" {
					settings = append(settings, s)
				}
			}
			return w.show(view{value: settings, lines: lines(settings), human: func(p *printer) {
				if len(settings) == 0 {
					w.infof("nothing is set, all settings have their defaults: see --effective")
					return
				}
				t := newTable(col("SETTING"), col("VALUE"), col("SOURCE"), wideOnly("DEFAULT"), wideOnly("MEANING"))
				for _, s := range settings {
					value := p.truncate(s.Value, 60)
					t.row(s.Key, value, s.Source, s.Default, s.Doc)
				}
				p.table(t)
			}})
		},
	}
	c.Flags().BoolVar(&effective, "effective", false, "all settings, with their defaults")
	return c
}

func configPath(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "path", Short: "Show the paths that this node uses",
		Example: "  balefire-node config path", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := w.locateConfigured()
			if err != nil {
				return err
			}
			return w.show(view{value: p, human: func(out *printer) {
				out.line("folder         %s\nconfiguration  %s\nsocket         %s", p.Dir, p.File, p.Socket)
			}})
		},
	}
}

func configValidate(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "validate", Short: "Check the configuration without starting anything",
		Example: "  balefire-node config validate --config ./new.yaml", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, p, err := w.config()
			if err != nil {
				return err
			}
			if len(l.Files) == 0 {
				w.infof("%s does not exist: all settings have their defaults", p.File)
				return nil
			}
			for _, f := range l.Files {
				w.infof("%s: valid", f)
			}
			return nil
		},
	}
}
