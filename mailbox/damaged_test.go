package mailbox

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/wire"
)

// A mail whose record is damaged is shown among the dead letters, and those around it are sent again.
func TestDamagedDeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"ceo", "desk", "local"} {
			f.mailbox(name, nil)
		}
		for _, body := range []string{"first", "damaged", "last"} {
			f.mail("agent:ceo", body, nil)
		}
		for range 45 { // what is new is read from memory
			f.mail("agent:local", strings.Repeat("x", 60<<10), nil)
		}
		f.damageLedger("damaged")
		given, bodies := f.lease("ceo", "", 9, time.Minute)
		if slices.Equal(bodies, []string{"first"}) {
			more, text := f.lease("ceo", "", 9, time.Minute)
			given, bodies = append(given, more...), append(bodies, text...)
		}
		if !slices.Equal(bodies, []string{"first", "last"}) {
			t.Fatalf("%q are read", bodies)
		}
		for _, d := range given {
			f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Final: true}}})
		}
		dead := f.inState("ceo", "DEAD")
		if len(dead) != 3 || dead[1].Seq != 2 || dead[1].Reason != mail.RecordDamaged || dead[1].Class != "normal" || dead[1].ID != "" {
			t.Errorf("%s", asJSON(t, dead))
		}
		out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{To: "agent:desk"})
		if err != nil || len(out.Items) != 3 || out.Items[1].Problem == nil || out.Items[1].Problem.Code != wire.CodeInternal {
			t.Errorf("%s, %v", asJSON(t, out), err)
		}
		if _, bodies := f.lease("desk", "", 9, time.Minute); !slices.Equal(bodies, []string{"first", "last"}) {
			t.Errorf("%q are sent again", bodies)
		}
	})
}

// damageLedger changes a byte of text in the first segment of the ledger.
func (f *fixture) damageLedger(text string) {
	f.t.Helper()
	paths, err := filepath.Glob(filepath.Join(f.dir, "*.seg"))
	f.must(err)
	b, err := os.ReadFile(paths[0])
	f.must(err)
	at := bytes.Index(b, []byte(text))
	if at < 0 {
		f.t.Fatalf("%q is not in %s", text, paths[0])
	}
	b[at] ^= 1
	f.must(os.WriteFile(paths[0], b, 0o600))
}
