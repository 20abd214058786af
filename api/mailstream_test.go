package api

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// mailNode runs a node with the mailboxes ceo and cto.
func mailNode(t testing.TB) *node.Node {
	t.Helper()
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	for _, name := range []string{"ceo", "cto"} {
		if _, err := n.Mail.SetMailbox(t.Context(), name, wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// serveMail serves n on a socket. The function connects to its stream of mail.
func serveMail(t testing.TB, n *node.Node) (dial func(protocol string) *websocket.Conn, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "balefire") // a path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "node.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- New(n, Config{Grace: time.Minute}).Serve(ctx, l) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	return func(protocol string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), "ws://node/v1/mail/stream", &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{protocol}})
		if err != nil {
			t.Fatal(err)
		}
		c.SetReadLimit(-1)
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}, stop
}

// tell sends a document.
func tell(t *testing.T, c *websocket.Conn, format string, a ...any) {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, fmt.Appendf(nil, format, a...)); err != nil {
		t.Fatal(err)
	}
}

// hear returns the next document.
func hear(t *testing.T, c *websocket.Conn) (a streamedAnswer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, b, err := c.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// textOf returns what is in the mails of an answer, and their leases.
func textOf(a streamedAnswer) (text string, leases []string) {
	for _, m := range a.Mails {
		text += string(m.Mail.Body)
		leases = append(leases, m.Lease)
	}
	return text, leases
}

// hearMails waits for the mails with these bodies of a session.
func hearMails(t *testing.T, c *websocket.Conn, session uint32, want string) (leases []string) {
	t.Helper()
	got := ""
	for len(got) < len(want) {
		a := hear(t, c)
		text, l := textOf(a)
		if a.Op != "mail" || a.Session != session || text == "" {
			t.Fatalf("%+v; want mail %q of session %d", a, want, session)
		}
		got, leases = got+text, append(leases, l...)
	}
	if got != want {
		t.Fatalf("mail %q, want %q", got, want)
	}
	return leases
}

// sendText sends a mail for each character of text.
func sendText(t *testing.T, c *websocket.Conn, to, text string) {
	t.Helper()
	var mails []wire.Mail
	for _, b := range text {
		mails = append(mails, wire.Mail{To: to, Body: []byte(string(b))})
	}
	doc, _ := json.Marshal(mails)
	tell(t, c, `{"op":"send","ref":7,"mails":%s}`, doc)
	a := hear(t, c)
	if a.Op != "sent" || a.Ref != 7 || len(a.Results) != len(mails) {
		t.Fatalf("%+v", a)
	}
	for i, r := range a.Results {
		if r.Problem != nil || r.ID == "" || r.Seq == 0 {
			t.Fatalf("mail %d: %+v, %v", i, r, r.Problem)
		}
	}
}

// TestMailDocuments sends and reads mail of two boxes over one connection, with every op.
func TestMailDocuments(t *testing.T) {
	dial, _ := serveMail(t, mailNode(t))
	c := dial(wire.MailDocuments)
	sendText(t, c, "agent:ceo", "abcdefg")
	tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":2,"reader":"w1","mode":"shared"}`)
	ab := hearMails(t, c, 1, "ab")
	tell(t, c, `{"op":"ping","ref":9}`)
	if a := hear(t, c); a.Op != "pong" || a.Ref != 9 {
		t.Fatalf("with two unsettled mails and a credit of two: %+v", a)
	}
	tell(t, c, `{"op":"settle","session":1,"ack":[%q]}`, ab[0])
	hearMails(t, c, 1, "c")
	tell(t, c, `{"op":"credit","session":1,"add":2}`)
	de := hearMails(t, c, 1, "de")
	tell(t, c, `{"op":"settle","session":1,"ref":3,"ack":[%q,%q],"extend":[{"lease":%q,"for":"1h"}],"nack":[{"lease":%q,"delay":"1h","reason":"no"}]}`, ab[0], "99.1.1", de[1], de[0])
	settled := false
	for got := ""; !settled || got == ""; {
		switch a := hear(t, c); a.Op {
		case "mail": // for the one that was nacked
			text, _ := textOf(a)
			got += text
		case "settled":
			settled = true
			if a.Ref != 3 || len(a.Stale) != 1 || a.Stale[0].Lease != "99.1.1" || a.Stale[0].Code != wire.SettledUnknown || len(a.Extended) != 1 || time.Until(*a.Extended[0].Until) < 30*time.Minute {
				t.Errorf("%+v", a)
			}
		default:
			t.Fatalf("%+v", a)
		}
	}
	sendText(t, c, "agent:cto", "x")
	tell(t, c, `{"op":"read","session":2,"box":"cto","credit":5}`)
	x := hearMails(t, c, 2, "x")
	tell(t, c, `{"op":"settle","session":1,"ref":4,"ack":[%q]}`, ab[1])
	for range 2 { // the mail for the credit of it may come first
		if a := hear(t, c); a.Op != "mail" && (a.Op != "settled" || a.Ref != 4 || a.Code != "" || a.Stale != nil) {
			t.Errorf("%+v", a)
		}
	}
	tell(t, c, `{"op":"settle","session":77,"ref":5,"ack":[%q]}`, x[0])
	a := hear(t, c)
	if a.Op != "settled" || a.Ref != 5 || a.Code != wire.CodeNotFound {
		t.Errorf("a session that never was: %+v", a)
	}
	tell(t, c, `{"op":"settle","session":77,"ack":[%q]}`, x[0])
	if a := hear(t, c); a.Op != "settled" || a.Ref != 0 || a.Code != wire.CodeNotFound {
		t.Errorf("a session that never was, without a ref: %+v", a)
	}
	tell(t, c, `{"op":"stop","session":2}`)
	if a := hear(t, c); a.Op != "end" || a.Session != 2 || a.Code != "" {
		t.Errorf("%+v", a)
	}
	tell(t, c, `{"op":"read","session":2,"box":"agent:cfo","credit":5}`)
	if a := hear(t, c); a.Op != "end" || a.Code != wire.CodeNotFound {
		t.Errorf("%+v", a)
	}
	tell(t, c, `{"op":"send","mails":[{"to":"agent:cfo"},{"to":"agent:cto","class":"urgent"},{"to":"agent:cto","text":"plain"},{"to":"agent:cto","txt":"x"}]}`)
	a = hear(t, c)
	if len(a.Results) != 4 || a.Results[3].Problem == nil || a.Results[0].Problem == nil || a.Results[1].Problem == nil || a.Results[2].Problem != nil || a.Results[0].Problem.Code != wire.CodeNotFound || a.Results[1].Problem.Code != wire.CodeInvalid {
		t.Errorf("%+v", a)
	}
}

// TestAddressesInLettersAreCompleted checks that a reply finds its way from any node.
func TestAddressesInLettersAreCompleted(t *testing.T) {
	n := mailNode(t)
	dial, _ := serveMail(t, n)
	f := &frames{t: t, c: dial(wire.MailFrames)}
	f.write(sendFrame(1, "agent:ceo", letterOf(t, "", func(l *proto.Letter) { l.ReplyTo = []byte("agent:cto@here") })))
	if r, err := f.next(wire.OpSent, 1).Results(nil); err != nil || r[0].Code != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	f.write(readFrame(1, "agent:ceo", 1))
	given, err := f.next(wire.OpDelivered, 1).Deliveries(nil)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := proto.ParseLetter(given[0].Letter); err != nil || !strings.HasPrefix(string(l.ReplyTo), "agent:cto@12D3KooW") {
		t.Errorf("%q, %v", l.ReplyTo, err)
	}
}

// closed returns with what the node closes a connection.
func closed(t testing.TB, c *websocket.Conn) (code websocket.StatusCode, reason string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, _, err := c.Read(ctx); err != nil {
			e, _ := errors.AsType[websocket.CloseError](err)
			return e.Code, e.Reason
		}
	}
}

// TestWhatMayNotBeIsRefused checks that the node closes a connection with the reason of each
// row, and has written nothing; that another connection goes on; and that the mail of the box
// is still there.
func TestWhatMayNotBeIsRefused(t *testing.T) {
	n := mailNode(t)
	dial, _ := serveMail(t, n)
	other := dial(wire.MailDocuments)
	sendText(t, other, "agent:ceo", "a")
	letter := letterOf(t, "x", nil)
	many := make([][]byte, 513)
	for i := range many {
		many[i] = letter
	}
	frame := func(op byte, body ...byte) []byte {
		return wire.AppendMailFrame(nil, op, 1, func(b []byte) []byte { return append(b, body...) })
	}
	frames := map[string][]byte{
		"an unknown op":             frame(0x70),
		"an op of the node":         frame(wire.OpSent),
		"op 0":                      frame(0),
		"half a frame":              sendFrame(1, "agent:ceo", letter)[:20],
		"four bytes":                {0, 0, 0, 1},
		"a length of 2^32":          {255, 255, 255, 255, 1, 0, 0, 0, 0},
		"a length of 0":             {0, 0, 0, 0, 1, 0, 0, 0, 0},
		"a send without mail":       frame(wire.OpSend, 0, 0),
		"513 mails":                 sendFrame(1, "agent:ceo", many...),
		"a mail for nobody":         sendFrame(1, "", letter),
		"a letter of 2^32":          frame(wire.OpSend, 0, 1, 1, 'a', 255, 255, 255, 255),
		"bytes behind a ping":       frame(wire.OpPing, 1),
		"credit 0":                  readFrame(1, "agent:ceo", 0),
		"credit 2^63":               readFrame(1, "agent:ceo", 1<<63),
		"more credit":               wire.AppendMailFrame(nil, wire.OpCredit, 1, func(b []byte) []byte { return wire.AppendCredit(b, 1<<63) }),
		"session 0":                 readFrame(0, "agent:ceo", 1),
		"a session twice":           append(readFrame(1, "agent:ceo", 1), readFrame(1, "agent:ceo", 1)...),
		"a settle without anything": frame(wire.OpSettle, 0, 0, 0, 1, 0, 0),
		"a return":                  wire.AppendMailFrame(nil, wire.OpSettle, 1, func(b []byte) []byte { return wire.AppendSettle(b, 1, []wire.FramedSettlement{{Op: 7}}) }),
		"an extension of no time":   wire.AppendMailFrame(nil, wire.OpSettle, 1, func(b []byte) []byte { return wire.AppendSettle(b, 1, []wire.FramedSettlement{{Op: wire.FrameExtend}}) }),
		"a request for nobody":      wire.AppendMailFrame(nil, wire.OpRequest, 1, func(b []byte) []byte { return wire.AppendRequest(b, new(wire.FramedRequest)) }),
		"more than 1 MiB":           sendFrame(1, "agent:ceo", make([]byte, wire.MaxMailMessage)),
		"100 MB":                    make([]byte, 100<<20),
		"a frame of 100 MB":         append(binary.BigEndian.AppendUint32(nil, 100<<20), wire.OpSend, 0, 0, 0, 1),
		"65 sessions":               nil,
		"a delay of more than 30 d": wire.AppendMailFrame(nil, wire.OpSettle, 1, func(b []byte) []byte {
			return wire.AppendSettle(b, 1, []wire.FramedSettlement{{Op: wire.FrameNack, Ms: 1<<32 - 1}})
		}),
	}
	for i := range uint32(65) {
		frames["65 sessions"] = append(frames["65 sessions"], readFrame(i+1, "agent:cto", 1)...)
	}
	documents := map[string]string{
		"no document":      `send`,
		"two":              `{"op":"ping"}{"op":"ping"}`,
		"an unknown op":    `{"op":"sent"}`,
		"no op":            `{}`,
		"an unknown field": `{"op":"ping","refs":1}`,
		"a wrong field":    `{"op":"settle","session":1,"nack":[{"lease":"1.2.3","finl":true}]}`,
		"a wrong type":     `{"op":"settle","session":1,"ack":7}`,
		"mails in a ping":  `{"op":"ping","mails":7}`,
		"no mails":         `{"op":"send","mails":null}`,
		"broken mails":     `{"op":"send","mails":[{"to":"agent:ceo"}`,
		"negative credit":  `{"op":"read","session":1,"box":"ceo","credit":-1}`,
		"credit 2^63":      `{"op":"read","session":1,"box":"ceo","credit":9223372036854775808}`,
		"credit 2^64":      `{"op":"credit","session":1,"add":18446744073709551616}`,
		"nothing to send":  `{"op":"send","mails":[]}`,
		"513 mails":        `{"op":"send","mails":[{"to":"agent:ceo"}` + strings.Repeat(`,{"to":"agent:ceo"}`, 512) + `]}`,
		"nothing settled":  `{"op":"settle","session":1}`,
		"no request":       `{"op":"request","ref":1}`,
		"a bad lease":      `{"op":"settle","session":1,"ack":["1.2"]}`,
		"more than 1 MiB":  `{"op":"send","mails":[{"to":"agent:ceo","body":"` + strings.Repeat("AAAA", 300_000) + `"}]}`,
	}
	count := 0
	refused := func(name string, c *websocket.Conn, typ websocket.MessageType, msg []byte) {
		count++
		t.Run(name, func(t *testing.T) {
			go func() { _ = c.Write(t.Context(), typ, msg) }()   // it may be closed before it is read
			want, open := strings.CutSuffix(refusals[name], "…") // the rest is in the words of encoding/json
			if code, reason := closed(t, c); code != websocket.StatusPolicyViolation || want == "" || reason != want && !(open && strings.HasPrefix(reason, want)) {
				t.Errorf("closed with %d %q, want %q", code, reason, refusals[name])
			}
		})
	}
	for name, msg := range frames {
		refused("binary/"+name, dial(wire.MailFrames), websocket.MessageBinary, msg)
	}
	for name, msg := range documents {
		refused("json/"+name, dial(wire.MailDocuments), websocket.MessageText, []byte(msg))
	}
	refused("text in binary", dial(wire.MailFrames), websocket.MessageText, []byte(`{"op":"ping"}`))
	refused("binary in text", dial(wire.MailDocuments), websocket.MessageBinary, sendFrame(1, "agent:ceo", letter))
	if b, err := n.Mail.Get(t.Context(), "ceo"); err != nil || b.Next != 2 || b.Waiting != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	tell(t, other, `{"op":"read","session":1,"box":"agent:ceo","credit":9}`)
	if a := hear(t, other); len(a.Mails) != 1 || string(a.Mails[0].Mail.Body) != "a" || a.Mails[0].Attempt != 1 {
		t.Errorf("the mail that waited: %+v", a)
	}
	if count != len(refusals) {
		t.Errorf("%d rows, %d refusals", count, len(refusals))
	}
	t.Logf("counted: %d bad messages, each refused with 1008, nothing written", count)
}

// TestABadMailIsRefusedAlone sends mails of which each has a fault of its own in one document
// with good ones: the good ones are sent, and the connection stays.
func TestABadMailIsRefusedAlone(t *testing.T) {
	n := mailNode(t)
	dial, _ := serveMail(t, n)
	c := dial(wire.MailDocuments)
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	bad := []struct{ mail, want string }{
		{`{"to":"agent:ceo","to":"agent:ceo"}`, `field "to" is given twice`},
		{`{"to":"agent:ceo","labels":{"a":"1","a":"2"}}`, `field "a" is given twice`},
		{`{"to":"agent:ceo","labels":` + deep + `}`, "nests deeper"},
		{`{"to":"agent:ceo","text":tru}`, "invalid character"},
		{`{"to":"agent:ceo"]`, "the JSON is broken"},
		{`7`, "a JSON object is expected"},
	}
	for _, x := range bad {
		tell(t, c, `{"op":"send","ref":1,"mails":[{"to":"agent:ceo","text":"a"},%s,{"to":"agent:ceo","text":"b"}]}`, x.mail)
		a := hear(t, c)
		if len(a.Results) != 3 || a.Results[0].Problem != nil || a.Results[2].Problem != nil || a.Results[1].Problem == nil || !strings.Contains(a.Results[1].Problem.Error(), x.want) {
			t.Errorf("%s: %+v", x.mail, a)
		}
	}
}

// refusals are the reasons with which a connection is closed, by the rows of
// TestWhatMayNotBeIsRefused.
var refusals = map[string]string{
	"binary/100 MB":                    "a message of more than 1179648 bytes",
	"binary/513 mails":                 "bad frame: send",
	"binary/65 sessions":               "more than 64 sessions",
	"binary/a delay of more than 30 d": "a time of 1193h2m47.295s in a settle: must be at most 30 days, and more than 0 to extend",
	"binary/a frame of 100 MB":         "bad frame: a length of 104857600 in 9 bytes",
	"binary/a length of 0":             "bad frame: a length of 0 in 9 bytes",
	"binary/a length of 2^32":          "bad frame: a length of 4294967295 in 9 bytes",
	"binary/a letter of 2^32":          "bad frame: send",
	"binary/a mail for nobody":         "bad frame: send",
	"binary/a request for nobody":      "bad frame: request",
	"binary/a return":                  "bad frame: settle",
	"binary/a send without mail":       "bad frame: send",
	"binary/a session twice":           "session 1 has begun",
	"binary/a settle without anything": "bad frame: settle",
	"binary/an extension of no time":   "a time of 0s in a settle: must be at most 30 days, and more than 0 to extend",
	"binary/an op of the node":         "unknown op 0x81",
	"binary/an unknown op":             "unknown op 0x70",
	"binary/bytes behind a ping":       "bad frame: op 0x6",
	"binary/credit 0":                  "credit 0: must be from 1 to 65536",
	"binary/credit 2^63":               "credit 9223372036854775808: must be from 1 to 65536",
	"binary/four bytes":                "bad frame: 4 bytes, at least 9",
	"binary/half a frame":              "bad frame: a length of 74 in 20 bytes",
	"binary/more credit":               "credit 9223372036854775808: must be from 0 to 65536",
	"binary/more than 1 MiB":           "a message of more than 1179648 bytes",
	"binary/op 0":                      "unknown op 0x0",
	"binary/session 0":                 "a read without session: give it a number",
	"json/513 mails":                   "a send must have from 1 to 512 mails",
	"json/a bad lease":                 `invalid request: lease "1.2": must be what a delivery names, such as 88121.1795212606.4`,
	"json/an unknown field":            "bad document: …",
	"json/a wrong field":               `bad document: unknown field "finl"`,
	"json/a wrong type":                `bad document: field "ack" cannot be a number`,
	"json/mails in a ping":             "mails in a ping: they belong to a send",
	"json/no mails":                    "bad document: mails: a JSON array is expected",
	"json/broken mails":                "bad document: the JSON is broken at byte …",
	"json/an unknown op":               `unknown op "sent"`,
	"json/credit 2^63":                 "credit 9223372036854775808: must be from 1 to 65536",
	"json/credit 2^64":                 "bad document: …",
	"json/more than 1 MiB":             "a message of more than 1179648 bytes",
	"json/negative credit":             "bad document: …",
	"json/no document":                 "bad document: …",
	"json/no op":                       `unknown op ""`,
	"json/no request":                  "a request without mail",
	"json/nothing settled":             "invalid request: nothing to settle: give ack, nack, extend, defer or bounce",
	"json/nothing to send":             "a send must have from 1 to 512 mails",
	"json/two":                         "bad document: something follows the JSON object at byte …",
	"binary in text":                   "a binary message: the subprotocol is text",
	"text in binary":                   "a text message: the subprotocol is binary",
}

// TestStreamsAreForProgramsHere checks who may connect, and how.
func TestStreamsAreForProgramsHere(t *testing.T) {
	tests := []struct {
		name   string
		status int
		header []string
	}{
		{"a plain GET", 422, []string{"Sec-WebSocket-Protocol", wire.MailFrames}},
		{"no subprotocol", 422, []string{"Upgrade", "websocket", "Connection", "Upgrade"}},
		{"another subprotocol", 422, []string{"Upgrade", "websocket", "Sec-WebSocket-Protocol", "mqtt"}},
		{"a page of another machine", 403, []string{"Upgrade", "websocket", "Sec-WebSocket-Protocol", wire.MailFrames, "Origin", "https://example.com"}},
		{"a page without a machine", 403, []string{"Upgrade", "websocket", "Sec-WebSocket-Protocol", wire.MailFrames, "Origin", "null"}},
		{"a name that looks local", 403, []string{"Upgrade", "websocket", "Sec-WebSocket-Protocol", wire.MailFrames, "Origin", "http://localhost.example.com"}},
		{"no key", 400, []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Protocol", wire.MailFrames, "Origin", "http://localhost:8080"}},
	}
	h := serverOf(nodetest.Open(t, nil)).Handler()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, w := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/mail/stream", nil), httptest.NewRecorder()
			for i := 0; i < len(tt.header); i += 2 {
				r.Header.Set(tt.header[i], tt.header[i+1])
			}
			h.ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
		})
	}
}

// TestABrokenConnectionGivesItsMailBack checks at which price mail is given back, by how its
// reader ends (S08): it comes again with the same id.
func TestABrokenConnectionGivesItsMailBack(t *testing.T) {
	tests := []struct {
		name     string
		end      func(*testing.T, *websocket.Conn)
		abandons int
	}{
		{"the client is gone", func(_ *testing.T, c *websocket.Conn) { _ = c.CloseNow() }, 1},
		{"the client did what it may not", func(t *testing.T, c *websocket.Conn) { tell(t, c, "x"); closed(t, c) }, 1},
		{"the client closed it", func(_ *testing.T, c *websocket.Conn) { _ = c.Close(websocket.StatusNormalClosure, "") }, 0},
		{"the client closed it without a code", func(_ *testing.T, c *websocket.Conn) { _ = c.Close(websocket.StatusNoStatusRcvd, "") }, 0},
		{"the client stopped the session", func(t *testing.T, c *websocket.Conn) { tell(t, c, `{"op":"stop","session":1}`); hear(t, c) }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := mailNode(t)
			dial, _ := serveMail(t, n)
			c := dial(wire.MailDocuments)
			sendText(t, c, "agent:ceo", "a")
			tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":9}`)
			before := hear(t, c)
			if len(before.Mails) != 1 {
				t.Fatalf("%+v", before)
			}
			tt.end(t, c)
			c = dial(wire.MailDocuments)
			tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":9}`)
			if a := hear(t, c); len(a.Mails) != 1 || a.Mails[0].Attempt != 1 || !a.Mails[0].Redelivered || a.Mails[0].Mail.ID != before.Mails[0].Mail.ID {
				t.Errorf("%+v", a)
			} else if m, err := n.Mail.Mail(t.Context(), a.Mails[0].Mail.ID); err != nil || m.Abandons != tt.abandons || m.Attempts != 0 {
				t.Errorf("%+v, %v; want %d abandons", m, err, tt.abandons)
			}
		})
	}
}

// TestStreamsEndWithTheNode checks that a stop closes connections with 1012, and gives mail
// back for nothing.
func TestStreamsEndWithTheNode(t *testing.T) {
	n := mailNode(t)
	dial, stop := serveMail(t, n)
	c := dial(wire.MailDocuments)
	sendText(t, c, "agent:ceo", "a")
	tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":9}`)
	hearMails(t, c, 1, "a")
	got := make(chan websocket.StatusCode, 1)
	go func() {
		code, _ := closed(t, c)
		got <- code
	}()
	stop()
	if code := <-got; code != websocket.StatusServiceRestart {
		t.Errorf("closed with %d", code)
	}
	l, err := n.Mail.Lease(t.Context(), "ceo", "", wire.LeaseMail{Max: 1})
	if err != nil || len(l) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	if m, err := n.Mail.Mail(t.Context(), l[0].Mail.ID); err != nil || m.Abandons != 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestATooSlowClientIsClosed checks that a client that reads nothing is closed after 10
// seconds with 4 MiB unsent, and that one that reads in time is not.
func TestATooSlowClientIsClosed(t *testing.T) {
	for pause, want := range map[time.Duration]websocket.StatusCode{9 * time.Second: websocket.StatusNormalClosure, 11 * time.Second: websocket.StatusTryAgainLater} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			l := &oneConn{conns: make(chan net.Conn, 1)}
			l.conns <- near
			ended := make(chan error, 1)
			srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, err := websocket.Accept(w, r, nil)
				if err != nil {
					ended <- err
					return
				}
				m := &mailStream{conn: conn, form: jsonForm{}, sessions: map[uint32]*streamSession{}, waiting: make(chan unanswered)}
				ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
				m.out = newStreamWriter(end, websocket.MessageText)
				m.work.Go(func() {
					for range 6 {
						m.out.add(jsonForm{}, &streamAnswer{op: wire.OpEnd, err: errors.New(strings.Repeat("x", 1<<20))})
					}
				})
				m.run(ctx, end, websocket.MessageText)
				ended <- context.Cause(ctx)
			})}
			go func() { _ = srv.Serve(l) }()
			c, _, err := websocket.Dial(t.Context(), "ws://node/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return far, nil },
			}}})
			if err != nil {
				t.Fatal(err)
			}
			c.SetReadLimit(-1)
			time.Sleep(pause) // virtual
			if want == websocket.StatusNormalClosure {
				for range 6 {
					if _, _, err := c.Read(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				_ = c.Close(want, "")
			} else if code, _ := closed(t, c); code != want {
				t.Errorf("closed with %d, want %d", code, want)
			}
			if err := <-ended; errors.Is(err, errTooSlow) != (want == websocket.StatusTryAgainLater) {
				t.Errorf("after %s: %v", pause, err)
			}
			_ = srv.Close()
			synctest.Wait()
		})
	}
}

// A oneConn is a listener for the connections in conns.
type oneConn struct{ conns chan net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *oneConn) Close() error { close(l.conns); return nil }
func (*oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// A session of a box that another reader has ends with the node of the box, in both forms.
func TestEndOfAHeldSession(t *testing.T) {
	n := mailNode(t)
	if _, err := n.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{SubscriptionSettings: wire.SubscriptionSettings{Mode: new("exclusive")}}); err != nil {
		t.Fatal(err)
	}
	dial, _ := serveMail(t, n)
	c := dial(wire.MailDocuments)
	sendText(t, c, "agent:ceo", "a")
	tell(t, c, `{"op":"read","session":1,"box":"ceo","credit":5,"reader":"w1"}`)
	hearMails(t, c, 1, "a")
	tell(t, c, `{"op":"read","session":2,"box":"ceo","credit":5,"reader":"w2"}`)
	if a := hear(t, c); a.Op != "end" || a.Session != 2 || a.Code != wire.CodeHeld || a.Home != "here" || !strings.Contains(a.Detail, `"w1" reads it`) {
		t.Errorf("%+v", a)
	}
	f := &frames{t: t, c: dial(wire.MailFrames)}
	f.write(readFrame(5, "agent:ceo", 10))
	if code, detail, home, err := f.next(wire.OpEnd, 5).End(); code != wire.CodeHeld || home != "here" || !strings.Contains(detail, `"w1" reads it`) || err != nil {
		t.Errorf("%s %q at %q, %v", code, detail, home, err)
	}
}
