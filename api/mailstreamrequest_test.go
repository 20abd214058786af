package api

import (
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestRequestDocuments sends requests, and reads and replies to them over the same connection.
func TestRequestDocuments(t *testing.T) {
	dial, _ := serveMail(t, mailNode(t))
	c := dial(wire.MailDocuments)
	tell(t, c, `{"op":"request","ref":1,"mail":{"to":"agent:ceo","text":"how many?","wait":"1m"}}`)
	tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":1}`)
	asked := hear(t, c)
	if len(asked.Mails) != 1 || string(asked.Mails[0].Mail.Body) != "how many?" {
		t.Fatalf("%+v", asked)
	}
	m := asked.Mails[0].Mail
	tell(t, c, `{"op":"send","ref":2,"mails":[{"to":%q,"correlation":%q,"text":"five"}]}`, m.ReplyTo, m.Correlation)
	for range 2 {
		switch a := hear(t, c); a.Ref {
		case 1:
			if a.Op != "replied" || a.Code != "" || a.Request == nil || a.Request.ID != m.ID || a.Request.Reply == nil || string(a.Request.Reply.Body) != "five" {
				t.Errorf("%+v, %+v", a, a.Request)
			}
		case 2:
			if a.Op != "sent" || a.Results[0].Problem != nil {
				t.Errorf("%+v", a)
			}
		default:
			t.Fatalf("%+v", a)
		}
	}
	tell(t, c, `{"op":"settle","session":1,"ack":[%q]}`, asked.Mails[0].Lease)
	tell(t, c, `{"op":"request","ref":3,"mail":{"to":"agent:ceo","text":"broken","wait":"1m"}}`)
	asked = hear(t, c)
	tell(t, c, `{"op":"settle","session":1,"nack":[{"lease":%q,"final":true,"reason":"no such order"}]}`, asked.Mails[0].Lease)
	if a := hear(t, c); a.Op != "replied" || a.Ref != 3 || a.Code != wire.CodeBounced || !strings.Contains(a.Detail, "no such order") || a.Request == nil || a.Request.ID != asked.Mails[0].Mail.ID {
		t.Errorf("%+v", a)
	}
	tell(t, c, `{"op":"request","ref":4,"mail":{"to":"agent:cto"}}`)
	if a := hear(t, c); a.Op != "replied" || a.Code != "" || a.Request == nil || a.Request.State != "WAITING" || a.Request.Reply != nil {
		t.Errorf("without a wait: %+v", a)
	}
	for doc, want := range map[string]wire.Code{
		`{"to":"agent:cto","reply_to":"agent:ceo"}`: wire.CodeInvalid, `{"to":"agent:cto","wait":"1h"}`: wire.CodeInvalid,
		`{"to":"agent:none"}`: wire.CodeNotFound, `{"to":"agent:cto","txt":"x"}`: wire.CodeInvalid, `7`: wire.CodeInvalid,
	} {
		tell(t, c, `{"op":"request","ref":5,"mail":%s}`, doc)
		if a := hear(t, c); a.Op != "replied" || a.Ref != 5 || a.Code != want || a.Request != nil {
			t.Errorf("%s: %+v", doc, a)
		}
	}
}

// TestRequestFrames does the same with letters.
func TestRequestFrames(t *testing.T) {
	dial, _ := serveMail(t, mailNode(t))
	f := &frames{t: t, c: dial(wire.MailFrames)}
	ask := func(ref, ms uint32, to string, change func(*proto.Letter)) []byte {
		r := wire.FramedRequest{Ms: ms, ReplyFrom: []string{"*"}, FramedMail: wire.FramedMail{To: []byte(to), Letter: letterOf(t, "how many?", change)}}
		return wire.AppendMailFrame(nil, wire.OpRequest, ref, func(b []byte) []byte { return wire.AppendRequest(b, &r) })
	}
	f.write(ask(1, 60_000, "agent:ceo", nil), readFrame(1, "agent:ceo", 1))
	given, err := f.next(wire.OpDelivered, 1).Deliveries(nil)
	if err != nil || len(given) != 1 {
		t.Fatalf("%+v, %v", given, err)
	}
	asked, err := proto.ParseLetter(given[0].Letter)
	if err != nil || !wire.IsReplyBox(string(asked.ReplyTo)) || string(asked.Correlation) != asked.ID.String() {
		t.Fatalf("%+v, %v", asked, err)
	}
	f.write(sendFrame(2, string(asked.ReplyTo), letterOf(t, "five", nil)))
	for range 2 {
		switch x := f.any(); x.Op {
		case wire.OpSent:
		case wire.OpReplied:
			r, err := x.Reply()
			if err != nil || x.Ref != 1 || r.Code != "" || r.ID != asked.ID || r.From != [32]byte{} {
				t.Fatalf("%+v, %v", r, err)
			}
			if l, err := proto.ParseLetter(r.Letter); err != nil || string(l.Body) != "five" {
				t.Errorf("%+v, %v", l, err)
			}
		default:
			t.Fatalf("op %#x", x.Op)
		}
	}
	for _, tt := range []struct {
		name   string
		to     string
		change func(*proto.Letter)
		code   wire.Code
	}{
		{"without a wait", "agent:cto", nil, ""},
		{"with a box for replies", "agent:cto", func(l *proto.Letter) { l.ReplyTo = []byte("agent:ceo") }, wire.CodeInvalid},
		{"to nobody", "agent:none", nil, wire.CodeNotFound},
		{"of a node", "agent:cto", func(l *proto.Letter) { l.FirstID = l.ID }, wire.CodeInvalid},
	} {
		f.write(ask(3, 0, tt.to, tt.change))
		if r, err := f.next(wire.OpReplied, 3).Reply(); err != nil || r.Code != tt.code || len(r.Letter) > 0 || (r.ID == [16]byte{}) != (tt.code != "") {
			t.Errorf("%s: %+v, %v", tt.name, r, err)
		}
	}
}

// TestTooManyRequests closes a connection with more requests than may wait for their replies.
func TestTooManyRequests(t *testing.T) {
	dial, _ := serveMail(t, mailNode(t))
	c := dial(wire.MailDocuments)
	for i := range wire.MaxMailRequests + 1 {
		tell(t, c, `{"op":"request","ref":%d,"mail":{"to":"agent:ceo","wait":"10m"}}`, i+1)
	}
	if code, reason := closed(t, c); code != websocket.StatusPolicyViolation || reason != "more than 64 requests that wait for their replies" {
		t.Errorf("closed with %d %q", code, reason)
	}
}
