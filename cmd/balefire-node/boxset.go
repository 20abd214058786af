package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// boxFlags are the raw flags of the settings of a mailbox or a topic.
type boxFlags struct {
	allow, read []string
	mails       int
	bytes       int64
	age, lanes  string
	keep        string
	keepMails   int
	all, refuse bool
	json        bool
}

func (f *boxFlags) add(c *cobra.Command, topic bool) {
	fs := c.Flags()
	fs.StringSliceVar(&f.allow, "allow", nil, "other nodes that may send to it: peer:NAME, role:ROLE or *, comma-separated (default none)")
	fs.StringSliceVar(&f.read, "allow-read", nil, "other nodes that may read it, in the same form (default none)")
	fs.Var(numberValue[int]{&f.mails, 0, box.MaxMails}, "mails", "mails that may wait; 0: the default")
	fs.Var(sizeValue{&f.bytes}, "bytes", "size of all that waits, like 64MiB; 0: the default")
	fs.StringVar(&f.lanes, "lanes", "", "which mails with one key are handled in order: shared (all) or origin (those of each node); it never changes")
	fs.BoolVar(&f.refuse, "draining", false, "refuse new mail for now; --draining=false takes it again")
	fs.BoolVar(&f.json, "json", false, "make a mail whose body is not JSON a dead letter at once; a body above 256 KiB is not checked")
	if topic {
		fs.StringVar(&f.age, "age", "", "drop what is older, like 7d; 0: the default")
		fs.BoolVar(&f.all, "interest", false, "keep a mail until every subscription has read it, and refuse new ones when it is full")
	} else {
		fs.StringVar(&f.keep, "keep", "", "how long mail that is done, without a large body, is kept for mail history, like 7d; 0: not at all (default of a new mailbox: mail.keep)")
		fs.Var(numberValue[int]{&f.keepMails, 0, box.MaxMails}, "keep-mails", "how many of those at most; 0: the default, 10000")
	}
	oneOf(c, "lanes", wire.LanesShared, wire.LanesOrigin)
}

// settings converts the flags that are set, and reports whether there are any.
func (f *boxFlags) settings(given func(flag string) bool) (s wire.BoxSettings, some bool, err error) {
	var bad error
	for flag, set := range map[string]func(){
		"allow":      func() { s.Allow = nonNil(f.allow) },
		"allow-read": func() { s.AllowRead = nonNil(f.read) },
		"mails":      func() { s.Mails = &f.mails },
		"bytes":      func() { s.Bytes = &f.bytes },
		"lanes":      func() { s.Lanes = &f.lanes },
		"draining":   func() { s.Draining = &f.refuse },
		"json":       func() { s.JSON = &f.json },
		"interest":   func() { s.Interest = &f.all },
		"keep":       func() { s.Keep, bad = spanOrDefault("keep", f.keep) },
		"keep-mails": func() { s.KeepMails = &f.keepMails },
		"age":        func() { s.Age, err = spanOrDefault("age", f.age) },
	} {
		if given(flag) {
			some = true
			set()
		}
	}
	return s, some, errors.Join(err, bad)
}

// seizeFlags are the flags that seize the name of a mailbox or a topic of the mesh.
type seizeFlags struct {
	on, accept bool
	from       string
}

func (f *seizeFlags) add(w *app, c *cobra.Command) {
	c.Flags().BoolVar(&f.on, "seize", false, "make this node, an admin, the home of a name of the mesh whose home is lost")
	c.Flags().StringVar(&f.from, "from", "", "with --seize: name or id of the home to give up")
	c.Flags().BoolVar(&f.accept, "accept-loss", false, "with --seize: accept that what only the old home has is lost unless it comes back")
	_ = c.RegisterFlagCompletionFunc("from", w.completePeerFlag) // the flag exists
}

// set adds what the flags say to settings, and returns what the command has done then.
func (f *seizeFlags) set(s *wire.BoxSettings, name string) (done string, err error) {
	switch {
	case !f.on && (f.from != "" || f.accept):
		return "", usage("--from and --accept-loss go with --seize")
	case !f.on:
		return "changed", nil
	case f.from == "":
		return "", usage("--from is missing: name the home to give up, as shown by why")
	case !f.accept:
		return "", usage("seize %s: this gives up what only %s has of it: the mail that waits there or was read, dead letters, subscriptions and settings. Mail that waits is sent on if it comes back with its disk, else all is lost. As long as it may come back, waiting loses nothing. To continue, add --accept-loss", name, f.from)
	}
	s.Seize = &wire.Seize{From: f.from, AcceptLoss: true}
	return "seized: this node is its home", nil
}

// seizeHelp explains --seize for a kind of box.
func seizeHelp(kind string) string {
	return fmt.Sprintf(`With --seize this node, an admin, becomes the home of a %s of the mesh whose
home is permanently lost or was revoked: it makes a new and empty one, with the
settings that are given. Mail that waits on other nodes goes there. What only the
old home has is lost, also mail that its sender was told is stored. If it comes
back with its disk, it sends on what waits there, and keeps none of it.`, kind)
}

// readerFlags are the raw flags of the settings of a mailbox or a subscription.
type readerFlags struct {
	filter, mode, strategy, lease, onDead, deadAge, from, to string
	attempts, batch, dead                                    int
}

func (f *readerFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.mode, "mode", "", "shared (each mail goes to one of its readers), exclusive (there is one reader) or failover (one reads, the next when that ends)")
	fs.StringVar(&f.strategy, "strategy", "", "which reader is next in mode shared: ordered (the oldest), round_robin, priority or least_loaded")
	fs.Var(numberValue[int]{&f.attempts, 0, box.MaxAttempts}, "attempts", "failed deliveries until a mail is a dead letter; 0: the default, 3")
	fs.StringVar(&f.lease, "lease", "", "how long a reader has a mail, at most 12h; 0: the default, by class from 5s to 60s")
	fs.Var(numberValue[int]{&f.batch, 0, box.MaxKeyBatch}, "key-batch", "mails of one key that a reader is given at once; 0: the default, 1")
	fs.StringVar(&f.onDead, "on-dead", "", "what follows a dead letter with the same key: skip (the next mail) or block (nothing, until mailbox unblock)")
	fs.Var(numberValue[int]{&f.dead, 0, box.MaxMails}, "dead", "dead letters that are kept; 0: the default, 10000")
	fs.StringVar(&f.deadAge, "dead-age", "", "how long they are kept, like 30d; 0: the default, 30d")
	oneOf(c, "on-dead", "skip", "block")
	oneOf(c, "mode", "shared", "exclusive", "failover")
	oneOf(c, "strategy", "ordered", "round_robin", "priority", "least_loaded")
}

// addTo adds the flag of the box into which a subscription delivers.
func (f *readerFlags) addTo(c *cobra.Command) {
	c.Flags().StringVar(&f.to, "to", "", "deliver the mail into this box, such as agent:NAME@NODE; '' ends that")
}

// settings converts the flags that are set, and reports whether there are any.
func (f *readerFlags) settings(given func(flag string) bool) (s wire.SubscriptionSettings, some bool, err error) {
	var bad error
	for flag, set := range map[string]func(){
		"filter":    func() { s.Filter = &f.filter },
		"mode":      func() { s.Mode = &f.mode },
		"strategy":  func() { s.Strategy = &f.strategy },
		"attempts":  func() { s.Attempts = &f.attempts },
		"lease":     func() { s.Lease, err = spanOrDefault("lease", f.lease) },
		"key-batch": func() { s.KeyBatch = &f.batch },
		"on-dead":   func() { s.OnDead = &f.onDead },
		"dead":      func() { s.Dead = &f.dead },
		"dead-age":  func() { s.DeadAge, bad = spanOrDefault("dead-age", f.deadAge) },
		"from":      func() { s.From = f.from },
		"to":        func() { s.To = &f.to },
	} {
		if given(flag) {
			some = true
			set()
		}
	}
	return s, some, errors.Join(err, bad)
}

// wantSetting returns err, or an error if a command that changes settings is given none; like
// is an example of one.
func wantSetting(some bool, err error, like string) error {
	if err == nil && !some {
		return usage("nothing to set: give a setting, like %s", like)
	}
	return err
}

// spanOrDefault parses a flag that is a duration, or 0 for the default.
func spanOrDefault(flag, text string) (*wire.Duration, error) {
	if text == "0" {
		return new(wire.Duration), nil
	}
	d, err := parseSpan(flag, text)
	return &d, err
}

// mailboxFlags are the flags of the settings of a mailbox.
type mailboxFlags struct {
	box    boxFlags
	reader readerFlags
	run    handlerFlags
	named  bool
}

// settings converts the flags that are set, but for those of the handler, which it checks; args
// are those of a program.
func (f *mailboxFlags) settings(given func(flag string) bool, args []string) (s wire.MailboxSettings, some bool, err error) {
	b, someBox, err := f.box.settings(given)
	r, someReader, bad := f.reader.settings(given)
	someRun, wrong := f.run.check(given, args)
	return wire.MailboxSettings{Named: f.named, BoxSettings: b, SubscriptionSettings: r}, someBox || someReader || someRun, errors.Join(err, bad, wrong)
}

// printBox prints a mailbox.
func printBox(p *printer, v wire.Box) {
	s := reader(v)
	p.line("%s  %s", v.Name, boxState(v, s))
	row := p.rows()
	printMails(row, p.app, v)
	printHandler(row, v)
	printReader(row, v, s)
	printLimitsOf(row, v)
	printReaderSettings(row, s.Settings)
	printAllowed(row, v)
}

// rows returns a function that prints a name and a text.
func (p *printer) rows() func(name, format string, a ...any) {
	return func(name, format string, a ...any) { p.line("%-10s %s", name, fmt.Sprintf(format, a...)) }
}

type rowFunc = func(name, format string, a ...any)

// printMails prints what waits in a box and what has ended.
func printMails(row rowFunc, w *app, v wire.Box) {
	oldest := ""
	if v.Oldest != nil {
		oldest = "  the oldest came " + w.ago(v.Oldest) + " ago"
	}
	row("mails", "%d waiting  %s%s", v.Waiting, formatSize(v.Bytes), oldest)
	ended := fmt.Sprintf("%d done  %d dead  %d expired  %d cancelled", v.Ended.Done, v.Ended.Dead, v.Ended.Expired, v.Ended.Cancelled)
	if v.Kind == wire.BoxTopic {
		ended += fmt.Sprintf("  %d dropped", v.Ended.Dropped)
	}
	row("ended", "%s", ended)
}

// printReader prints what the readers of a subscription have and what they left.
func printReader(row rowFunc, v wire.Box, s wire.Subscription) {
	if s.Problem != nil {
		row("problem", "%s", prose.Line(*s.Problem))
	}
	row("delivery", "%d leased  %d retrying", s.Leased, s.Retrying)
	if len(s.Readers) > 0 {
		row("readers", "%s", readers(s))
	}
	name := readable{v.Name, s.Name}
	if s.Dead > 0 {
		row("dead", "%d dead letters: balefire-node dlq ls --mailbox %s", s.Dead, name)
	}
	if s.Blocked > 0 {
		row("blocked", "%d keys, by dead letters: balefire-node mailbox unblock %s KEY", s.Blocked, name)
	}
}

func printLimitsOf(row rowFunc, v wire.Box) {
	s := v.Settings
	if s.Mails != nil && s.Bytes != nil {
		row("limits", "%d mails  %s", *s.Mails, formatSize(*s.Bytes))
	}
	if s.Lanes != nil && *s.Lanes != wire.LanesShared {
		row("lanes", "%s", *s.Lanes)
	}
	if s.Age != nil {
		row("age", "%s", *s.Age)
	}
	if s.Keep != nil && *s.Keep > 0 && s.KeepMails != nil {
		row("history", "%d mails that are done, for %s", *s.KeepMails, *s.Keep)
	}
	if orZero(s.JSON) {
		row("json", "a mail whose body is not JSON is a dead letter at once")
	}
	if orZero(s.Interest) {
		row("interest", "a mail is kept until every subscription has read it")
	}
}

func printReaderSettings(row rowFunc, s wire.SubscriptionSettings) {
	if s.Filter != nil {
		row("filter", "%s", *s.Filter)
	}
	for _, x := range []struct {
		name string
		text *string
	}{{"to", s.To}, {"mode", s.Mode}, {"strategy", s.Strategy}, {"on dead", s.OnDead}} {
		if x.text != nil {
			row(x.name, "%s", *x.text)
		}
	}
	if s.Attempts != nil {
		row("attempts", "%d", *s.Attempts)
	}
	if s.Lease != nil {
		row("lease", "%s", *s.Lease)
	} else {
		row("lease", "by class: critical 5s, high 10s, normal 30s, low 60s")
	}
	if s.KeyBatch != nil && *s.KeyBatch > 1 {
		row("key batch", "%d", *s.KeyBatch)
	}
	if s.Dead != nil && s.DeadAge != nil {
		row("keeps", "%d dead letters for %s", *s.Dead, *s.DeadAge)
	}
}

func printAllowed(row rowFunc, v wire.Box) {
	row("allow", "%s", allowed(v.Settings.Allow))
	row("allow read", "%s", allowed(v.Settings.AllowRead))
}

// allowed formats an allow list.
func allowed(list *[]string) string {
	if text := joined(list); text != "" {
		return text
	}
	return "programs of this node only"
}
