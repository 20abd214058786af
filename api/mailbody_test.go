package api

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// TestLargeBodiesOfMail sends bodies of any size as they are, and reads them byte for byte.
func TestLargeBodiesOfMail(t *testing.T) {
	n := mailNode(t)
	nodetest.Admit(t, n, "laptop")
	for _, size := range []int{3, 1<<20 + 1} {
		body := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(body)
		res, answer := ask(t, n, "POST", "/v1/mail?to=agent:ceo&key=k&label=a=b&sender=me", "video/mp4", string(body))
		sent := decoded[wire.SentMail](t, res, answer, 202)
		given, err := n.Mail.Lease(t.Context(), "ceo", "", wire.LeaseMail{})
		if err != nil || len(given) != 1 {
			t.Fatalf("%+v, %v", given, err)
		}
		m := given[0].Mail
		if m.ID != sent.ID || m.Key != "k" || m.Labels["a"] != "b" || m.ContentType != "video/mp4" || m.Size != int64(size) || (m.Digest == "") != (size == 3) {
			t.Errorf("%+v", m)
		}
		for _, path := range []string{"/v1/mail/" + m.ID + "/body", "/v1/mailboxes/ceo/body?lease=" + given[0].Lease} {
			res, got := ask(t, n, "GET", path, "", "")
			if res.StatusCode != 200 || !bytes.Equal([]byte(got), body) || res.Header.Get("Content-Type") != "video/mp4" || strings.Trim(res.Header.Get("ETag"), `"`) != m.Digest || res.Header.Get("Balefire-Mail-Id") != m.ID {
				t.Errorf("%s: %d, %d bytes, %v", path, res.StatusCode, len(got), res.Header)
			}
		}
		if _, err := n.Mail.Settle(t.Context(), "ceo", "", wire.SettleMail{Ack: []string{given[0].Lease}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		method, path, says string
		status             int
	}{
		{"POST", "/v1/mail", "no to in the query", 422},
		{"POST", "/v1/mail?to=agent:ceo&body=x", "body: unknown query parameter", 422},
		{"POST", "/v1/mail?to=agent:none", "mailbox add none", 404},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/body", "no mail", 404},
		{"GET", "/v1/mailboxes/ceo/body?lease=1.1.1", "has ended", 404},
		{"GET", "/v1/mailboxes/ceo/body?lease=x", "88121.1795212606.4", 422},
		{"GET", "/v1/mailboxes/ceo/body", "lease", 422},
		{"GET", "/v1/topics/orders/subscriptions/a/body?lease=1.1.1", "orders", 404},
	} {
		typ, body := "", ""
		if tt.method == "POST" {
			typ, body = octetStream, "x"
		}
		res, got := ask(t, n, tt.method, tt.path, typ, body)
		if res.StatusCode != tt.status || !strings.Contains(got, tt.says) {
			t.Errorf("%s %s: %d %s, want %d that says %q", tt.method, tt.path, res.StatusCode, got, tt.status, tt.says)
		}
	}
}
