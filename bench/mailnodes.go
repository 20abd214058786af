package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/api/client/mailstream"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The boxes of all loads of mail.
const (
	mailboxName = "bench"
	mailboxHere = "agent:" + mailboxName
	topicName   = "bench"
	topicHere   = "topic:" + topicName
)

// makeBox makes the mailbox, or the topic with some subscriptions. Its limits are never
// reached.
func (c *child) makeBox(o request) error {
	ctx := context.Background()
	limits := wire.BoxSettings{Mails: new(1 << 23), Bytes: new(int64(1 << 33)), Allow: &[]string{"*"}}
	if o.Do == "mailbox" {
		_, err := c.node.Mail.SetMailbox(ctx, mailboxName, wire.MailboxSettings{BoxSettings: limits})
		return err
	}
	limits.Interest = new(true)
	_, err := c.node.Mail.SetTopic(ctx, topicName, limits)
	for i := 0; i < o.Count && err == nil; i++ {
		_, err = c.node.Mail.SetSubscription(ctx, topicName, subName(i), wire.SubscriptionSettings{})
	}
	return err
}

func subName(i int) string { return "s" + strconv.Itoa(i) }

// dialMail lets loads of this child be mail: by HTTP, or over the stream by package
// mailstream.
func (c *child) dialMail(o request) error {
	if o.Do == "dialmail" {
		cl := client.New(o.Path)
		c.submitter = mailRequests{cl}
		c.stops = append(c.stops, func() error { cl.Close(); return nil })
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := mailstream.New(o.Path)
	w := &mailWalks{s.Mailer(), o.On}
	c.submitter = w
	sent, read := make(chan error, 1), make(chan error, 1)
	go func() { sent <- w.Run(ctx) }()
	go func() { read <- w.read(ctx, s, c.watch) }()
	c.stops = append(c.stops, func() error { cancel(); return errors.Join(<-sent, <-read) })
	return nil
}

// mailRequests sends mail instead of tasks. A mail is done when it is on disk.
type mailRequests struct{ c *client.Client }

func mailOf(r wire.Request) wire.Mail { return wire.Mail{To: r.Target, Body: r.Body} }

func (m mailRequests) Submit(ctx context.Context, r wire.Request) (wire.Submitted, error) {
	sent, err := m.c.SendMail(ctx, mailOf(r))
	return wire.Submitted{ID: sent.ID}, err
}

func (m mailRequests) SubmitMany(ctx context.Context, all []wire.Request) ([]wire.Submitted, []error) {
	mails, out := make([]wire.Mail, len(all)), make([]wire.Submitted, len(all))
	for i, r := range all {
		mails[i] = mailOf(r)
	}
	sent, errs := m.c.SendMails(ctx, mails)
	for i := range sent {
		out[i].ID = sent[i].ID
	}
	return out, errs
}

// mailWalks sends and reads mail instead of tasks. A mail is accepted when it was delivered
// and acknowledged.
type mailWalks struct {
	*mailstream.Mailer
	relaxed bool
}

func (w *mailWalks) Submit(ctx context.Context, r wire.Request) (wire.Submitted, error) {
	m := mailOf(r)
	m.Relaxed = w.relaxed
	sent, err := w.Send(ctx, m)
	return wire.Submitted{ID: sent.ID}, err
}

func (*mailWalks) SubmitMany(context.Context, []wire.Request) ([]wire.Submitted, []error) {
	return nil, []error{errors.New("a mailer makes its own batches")}
}

func (w *mailWalks) read(ctx context.Context, s *mailstream.Client, seen *watch) error {
	for d, err := range s.ReadMail(ctx, mailboxHere, mailstream.Read{Credit: mailCredit}) {
		if err == nil {
			err = d.Ack()
		}
		if err != nil {
			return err
		}
		id, err := proto.ParseTaskID(d.Mail.ID)
		if err != nil {
			return err
		}
		seen.changed(id, proto.Accepted)
	}
	return nil
}

// A post is one node with a mailbox or a topic and a client, each its own process.
type post struct {
	node, client *proc
	dir, socket  string
}

// newPost runs a node in a new folder, with a heap limit, or 0 for its own. With subscriptions
// it has a topic, otherwise a mailbox.
func newPost(dir string, slow time.Duration, subs int, memory int64) (_ *post, err error) {
	p := &post{dir: filepath.Join(dir, "a")}
	p.socket = filepath.Join(p.dir, "api.sock")
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	if p.node, err = spawn("node", slow); err != nil {
		return nil, err
	}
	if p.client, err = spawn("client", 0); err != nil {
		return nil, err
	}
	box := request{Do: "mailbox"}
	if subs > 0 {
		box = request{Do: "topic", Count: subs}
	}
	return p, all(p.node, request{Do: "open", Open: opening{Dir: p.dir, Name: "a", Engine: datadir.EngineNuts, Memory: memory, Idle: true}}, box, request{Do: "serve", Path: p.socket})
}

func (p *post) end() error { return errors.Join(p.client.end(), p.node.end()) }

// all sends requests whose responses are empty.
func all(p *proc, requests ...request) error {
	for _, r := range requests {
		if _, err := p.ask(r, nil); err != nil {
			return err
		}
	}
	return nil
}

// A remotePair is two nodes; the first sends mail to a mailbox of the second.
type remotePair struct {
	pair
	socketA, socketB string
	wire             *veth // between them; nil: they are on loopback
}

func newRemotePair(dir string, cuttable bool) (_ *remotePair, err error) {
	f := &remotePair{socketA: filepath.Join(dir, "a", "api.sock"), socketB: filepath.Join(dir, "b", "api.sock")}
	f.dirA = filepath.Join(dir, "a")
	defer func() {
		if err != nil {
			err = errors.Join(err, f.end())
		}
	}()
	a := opening{Dir: f.dirA, Name: "a", Engine: datadir.EngineNuts, Memory: rateMemory, Idle: true}
	b := opening{Dir: filepath.Join(dir, "b"), Name: "b", Engine: datadir.EngineNuts, Memory: rateMemory, Idle: true}
	var prefix []string
	if cuttable {
		if f.wire, err = newVeth(); err != nil {
			return nil, err
		}
		a.Listen, b.Listen, prefix = vethHere, vethThere, f.wire.prefix()
	}
	if f.a, err = spawn("sender", 0); err != nil {
		return nil, err
	}
	if f.b, err = spawnBy("home", prefix); err != nil {
		return nil, err
	}
	if err := all(f.a, request{Do: "open", Open: a}, request{Do: "serve", Path: f.socketA}); err != nil {
		return nil, err
	}
	inv, err := f.a.ask(request{Do: "invite"}, nil)
	if err != nil {
		return nil, err
	}
	b.Ticket = inv.Text
	return f, all(f.b, request{Do: "open", Open: b}, request{Do: "mailbox"}, request{Do: "serve", Path: f.socketB})
}

func (f *remotePair) end() error {
	err := f.pair.end()
	if f.wire != nil {
		err = errors.Join(err, f.wire.remove())
	}
	return err
}

// A veth is a wire to a network namespace of its own, whose packets can be dropped.
type veth struct{ name string }

// The addresses of its ends.
const (
	vethHere  = "10.213.77.1"
	vethThere = "10.213.77.2"
)

// errNoNamespace is returned where network namespaces cannot be made.
var errNoNamespace = errors.New("network namespaces need root, ip and nft")

func newVeth() (*veth, error) {
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			return nil, errNoNamespace
		}
	}
	v := &veth{"bench" + strconv.Itoa(os.Getpid())}
	err := errors.Join(
		command("ip", "netns", "add", v.name),
		command("ip", "link", "add", v.name, "type", "veth", "peer", "name", "wire", "netns", v.name),
		command("ip", "addr", "add", vethHere+"/30", "dev", v.name),
		command("ip", "link", "set", v.name, "up"),
		v.there("ip", "addr", "add", vethThere+"/30", "dev", "wire"),
		v.there("ip", "link", "set", "wire", "up"),
		v.there("ip", "link", "set", "lo", "up"),
	)
	if err != nil {
		return nil, errors.Join(err, v.remove())
	}
	return v, nil
}

func command(name string, args ...string) error {
	msg, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return errors.New(name + ": " + firstWords(string(msg), 20))
	}
	return nil
}

func (v *veth) prefix() []string { return []string{"ip", "netns", "exec", v.name} }

// there runs a command in the namespace.
func (v *veth) there(args ...string) error {
	argv := append(v.prefix(), args...)
	return command(argv[0], argv[1:]...)
}

// cut drops all packets of the wire, silently.
func (v *veth) cut() error {
	return v.there("nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; policy drop; }; add chain inet cut out { type filter hook output priority 0; policy drop; }")
}

func (v *veth) heal() error { return v.there("nft", "delete", "table", "inet", "cut") }

func (v *veth) remove() error { return command("ip", "netns", "del", v.name) }
