package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// Mail of a box of another node is in no box here: what mail read printed of it is answered.
func TestReplyToMailOfAnotherNode(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, values ...any) string {
		var all []byte
		for _, v := range values {
			line, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			all = append(append(all, line...), '\n')
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, all, 0o600); err != nil {
			t.Fatal(err)
		}
		return "@" + path
	}
	m := testReceived("how many?")
	d := wire.DeliveredMail{Lease: "7.1.2", Attempt: 1, Mail: m}
	silent := d
	silent.Mail.ReplyTo = ""
	want := `POST /v1/mail {"to":"` + m.ReplyTo + `",`
	for _, tt := range []struct {
		name, file string
		code       int
		calls      string
		errs       string
	}{
		{"a line of jsonl", write("line", d), exitOK, want, ""},
		{"one item of json", write("json", wire.LeasedMail{Items: []wire.DeliveredMail{d}}), exitOK, want, ""},
		{"two lines", write("two", d, d), exitUsage, "", "is not one mail"},
		{"two items", write("items", wire.LeasedMail{Items: []wire.DeliveredMail{d, d}}), exitUsage, "", "is not one mail"},
		{"no mail", write("none"), exitUsage, "", "is not one mail"},
		{"something else", write("else", map[string]string{"id": "x"}), exitUsage, "", "is not one mail"},
		{"no file", "@" + filepath.Join(dir, "missing"), exitError, "", "no such file"},
		{"a mail without reply_to", write("silent", silent), exitRefused, "", "names no box for replies"},
	} {
		n := newMailNode()
		code, _, errs := command(t, n, "mail", "reply", tt.file, "five", "--dedupe", "d")
		calls := strings.Join(n.Requests(), "; ")
		if code != tt.code || !strings.HasPrefix(calls, tt.calls) || (calls == "") != (tt.calls == "") || !strings.Contains(errs, tt.errs) {
			t.Errorf("%s: %d, asked %q\n%s", tt.name, code, calls, errs)
		}
		if tt.code == exitOK && (!strings.Contains(calls, `"body":"Zml2ZQ=="`) || !strings.Contains(calls, `"hops":`)) {
			t.Errorf("%s: %s", tt.name, calls)
		}
	}
}
