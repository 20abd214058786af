package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A machine joins although another node of it uses the ports, and a join that reaches
// nobody leaves nothing behind.
func TestJoinNextToAnotherNode(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, func(_ string, c *Config) { c.Net.Listen = []string{freeAddr(t)} })
	invite := func() string {
		inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return inv.Ticket
	}
	cfg := testConfig(t, filepath.Join(t.TempDir(), "c"))
	cfg.Net.Listen = a.cfg.Net.Listen
	if _, err := Joiner(cfg).WithTicket(t.Context(), invite(), "c"); err != nil {
		t.Errorf("next to a node that uses the port: %v", err)
	}
	ticket := invite()
	a.halt()
	lost, half := testConfig(t, filepath.Join(t.TempDir(), "d")), testConfig(t, t.TempDir())
	if err := os.WriteFile(filepath.Join(half.Dir, "config.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{lost, half} {
		if _, err := Joiner(cfg).WithTicket(t.Context(), ticket, "d"); !errors.Is(err, transport.ErrUnreached) {
			t.Errorf("with nobody there: %v", err)
		}
	}
	if _, err := os.Stat(lost.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	if all, err := os.ReadDir(half.Dir); err != nil || len(all) != 1 {
		t.Errorf("in a folder that existed, %v are left, %v", all, err)
	}
}
