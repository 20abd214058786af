package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/wire"
)

func storeCommand(w *app) *cobra.Command {
	return group("store", "Inspect, check, copy and repair the store",
		"Inspect, copy or compact the store of the running node; check or repair the\nstore of a stopped node. The ledger, in which mail is kept, is copied, checked,\nrestored and salvaged with it. The command line never opens the store of a\nrunning node: it asks the node.",
		storeStats(w), storeCheck(w), storeCompact(w), storeSnapshot(w), storeKey(w), storeRestore(w), storeMigrate(w), storeSalvage(w))
}

func storeStats(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "Show the sizes of the running node's store",
		Example: "  balefire-node store stats -o json", Args: cobra.NoArgs,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, _ []string) error {
			s, err := c.StoreStats(ctx)
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) {
				p.line("engine   %s, schema %d", s.Engine, s.Schema)
				p.line("on disk  %s, live %s in %d records; bodies %s, mail %s", formatSize(s.DiskBytes), formatSize(s.LiveBytes), s.Keys, formatSize(s.BlobBytes), formatSize(s.LedgerBytes))
				p.line("free     %s, reserve %s", formatSize(s.FreeBytes), formatSize(s.Reserve))
				p.line("commits  %d", s.Commits)
				if s.Full {
					p.line("! %s", prose.Line(wire.Note{Code: s.Refuses}))
				}
				if s.Failed != "" {
					p.line("! %s", prose.Plain(s.Failed))
				}
			}})
		}),
	}
}

func storeCheck(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Read the whole store and ledger of a stopped node",
		Long:    "Read the whole store and ledger of a stopped node and report damage. It changes\nnothing. The exit code is 1 when there is damage.",
		Example: "  balefire-node store check --dir /var/lib/balefire", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := w.nodeFolder()
			if err != nil {
				return err
			}
			r, err := datadir.Check(p.Dir)
			if err != nil {
				return explainOpenError(err)
			}
			if err := w.show(reportView(r)); err != nil || r.Clean {
				return err
			}
			return fmt.Errorf("the store in %s is damaged: balefire-node store salvage copies what can still be read", p.Dir)
		},
	}
}

// nodeFolder returns the paths of a node whose folder must exist.
func (w *app) nodeFolder() (config.Paths, error) {
	p, err := w.locate()
	if err == nil && !mayExist(p.Dir) {
		err = fmt.Errorf("%w: the folder %s does not exist: give the node's folder with --dir", wire.ErrNotFound, p.Dir)
	}
	return p, err
}

// stoppedNode returns the configuration of a node whose folder must exist.
func (w *app) stoppedNode() (node.Config, error) {
	l, p, err := w.config()
	if err == nil {
		_, err = w.nodeFolder()
	}
	if err != nil {
		return node.Config{}, err
	}
	cfg := l.Node(p.Dir)
	cfg.Logger, cfg.Clock = slog.New(slog.DiscardHandler), w.clock
	return cfg, nil
}

func reportView(r datadir.Report) view {
	return view{value: r, human: func(p *printer) {
		state := "clean"
		if !r.Clean {
			state = "DAMAGED"
		}
		p.line("%s  %s  %d records", r.Engine, state, r.Records)
		for _, n := range r.Notes {
			p.line("  %s", n)
		}
	}}
}

func storeCompact(w *app) *cobra.Command {
	return storeAction(w, "compact", "Reclaim the space of removed records", "  balefire-node store compact", cobra.NoArgs,
		func(ctx context.Context, args []string) (string, error) {
			c, err := w.node()
			if err != nil {
				return "", err
			}
			return "the store is compacted", c.Compact(ctx)
		})
}

func storeSnapshot(w *app) *cobra.Command {
	var toKey string
	cmd := storeAction(w, "snapshot DIR", "Copy the store and ledger of the running node into a new folder", "  balefire-node store snapshot /backup/balefire-$(date +%F)\n  balefire-node store snapshot /backup/balefire.age --to-key age1…", exactly(1, "a folder that does not exist"),
		func(ctx context.Context, args []string) (string, error) {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return "", err
			}
			c, err := w.node()
			if err != nil {
				return "", err
			}
			return "the copy is in " + dir, c.Snapshot(ctx, dir, toKey)
		})
	cmd.Flags().StringVar(&toKey, "to-key", "", "encrypt the copy to this public key, as printed by store key; the copy is one file")
	return cmd
}

func storeKey(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "key FILE", Short: "Create a key pair for encrypted snapshots",
		Long: `Create a key pair for encrypted snapshots. The private key, which decrypts them,
is written to a new FILE: do not keep it on the node's disk. The public key is
printed: pass it to store snapshot --to-key.`,
		Example: "  balefire-node store key /media/stick/balefire-snapshots.key", Args: exactly(1, "a file that does not exist"),
		RunE: func(_ *cobra.Command, args []string) error {
			public, private, err := datadir.NewSnapshotKey()
			if err != nil {
				return err
			}
			f, err := createNew(args[0])
			if err != nil {
				return err
			}
			_, err = f.WriteString(private + "\n")
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				return err
			}
			key := struct {
				Public string `json:"public"`
			}{public}
			return w.show(view{value: key, human: func(p *printer) { p.line("%s", public) }})
		},
	}
}

// createNew creates a file that must not exist.
func createNew(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists: name a new file", path)
	}
	return f, err
}

// storeAction returns a command that sends the node a request that may take long, and
// prints that it is in progress.
func storeAction(w *app, use, short, example string, args cobra.PositionalArgs, act func(context.Context, []string) (string, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example, Args: args,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			stop := w.showWaiting(short)
			done, err := act(ctx, args)
			stop()
			if err == nil {
				w.infof("%s", done)
			}
			return err
		},
	}
}

func storeSalvage(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "salvage DIR", Short: "Copy the readable records of a damaged store",
		Long: `Copy every committed record that can still be read from the store and the ledger
of a stopped node to a new node folder. The damaged ones are not changed. The
copy of a damaged store counts as restored: see store restore --help.`,
		Example: "  balefire-node store salvage /var/lib/balefire-new --dir /var/lib/balefire", Args: exactly(1, "a folder that does not exist"),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := w.stoppedNode()
			if err != nil {
				return err
			}
			stop := w.showWaiting("reading the damaged store")
			r, err := node.SalvageStore(cfg, args[0])
			stop()
			if err != nil {
				return explainOpenError(err)
			}
			return w.show(reportView(r))
		},
	}
}

func storeRestore(w *app) *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use: "restore SNAPSHOT", Short: "Restore a snapshot as the store of a stopped node",
		Long: `Check a snapshot and copy it to the store and the ledger of a stopped node. The
old ones are moved aside, with links to the bodies, nothing is deleted. The node
does not know then what it did after the snapshot: a task that may have run
already is not started again but becomes a dead letter, and mail that has ended
is delivered again.
Revocations are also stored next to the keys: a member that was revoked after
the snapshot stays revoked.`,
		Example: "  balefire-node store restore /backup/balefire-2026-11-20 --dir /var/lib/balefire", Args: exactly(1, "a snapshot written by store snapshot"),
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := w.stoppedNode()
			if err != nil {
				return err
			}
			if !mayExist(args[0]) {
				return fmt.Errorf("%w: %s does not exist: give a snapshot written by store snapshot", wire.ErrNotFound, args[0])
			}
			private := ""
			if keyFile != "" {
				b, err := os.ReadFile(keyFile)
				if err != nil {
					return fmt.Errorf("read the key of the snapshot: %w", err)
				}
				private = strings.TrimSpace(string(b))
			}
			stop := w.showWaiting("checking and copying the snapshot")
			r, err := node.RestoreStore(cfg, args[0], private)
			stop()
			if err != nil {
				return explainOpenError(err)
			}
			return w.show(view{value: r, human: func(p *printer) {
				p.line("%s  %d records restored", r.Engine, r.Records)
				if r.Mail > 0 {
					p.line("ledger  %d records restored; mail that ended after the snapshot is delivered again", r.Mail)
				}
				p.line("the old store is in %s", r.Aside)
				if len(r.Revoked) > 0 {
					p.line("revoked since the snapshot, and still revoked: %s", strings.Join(r.Revoked, ", "))
				}
				p.line("what the node learned after the snapshot is lost until it learns it again from others: new members, addresses, settings of queues, and revocations that are not in identity/revocations")
				p.line("tasks that were created before %s and have no end in the snapshot may have run: they become dead letters", r.Lost.Local().Format(time.DateTime))
			}})
		},
	}
	cmd.Flags().StringVar(&keyFile, "key-file", "", "file with the private key of an encrypted snapshot, as written by store key")
	return cmd
}

func storeMigrate(w *app) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "migrate --to ENGINE", Short: "Convert the store of a stopped node to the other engine",
		Long: `Convert the store of a stopped node to nutsdb or pebble. The old store is moved
aside, nothing is deleted. A store that does not fit into memory is read from its
log: the conversion to pebble of 62 500 tasks of 1 KiB needs 86 MiB. Set
store.engine in the configuration to the new engine before the next start.`,
		Example:     "  balefire-node store migrate --to pebble --dir /var/lib/balefire",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch to {
			case datadir.EngineNuts, datadir.EnginePebble:
			case "":
				return usage("--to is missing: it must be %s or %s", datadir.EngineNuts, datadir.EnginePebble)
			default:
				return usage("--to %.40q: it must be %s or %s", to, datadir.EngineNuts, datadir.EnginePebble)
			}
			cfg, err := w.stoppedNode()
			if err != nil {
				return err
			}
			stop := w.showWaiting("converting the store")
			r, err := datadir.Migrate(cfg.Storage(), to)
			stop()
			if err != nil {
				return explainOpenError(err)
			}
			return w.show(view{value: r, human: func(p *printer) {
				p.line("%s to %s  %d records", r.From, r.To, r.Records)
				p.line("the old store is in %s", r.Aside)
				p.line("set store.engine: %s in the configuration before the next start", r.To)
			}})
		},
	}
	c.Flags().StringVar(&to, "to", "", "nutsdb or pebble")
	completeWords(c, "to", datadir.EngineNuts, datadir.EnginePebble)
	return c
}
