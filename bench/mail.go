package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/datadir"
)

// Sizes of the loads of mail.
const (
	mailFlying  = 1024      // mails sent and not done yet
	mailBatch   = 16        // mails in one request
	mailTasks   = 4_000_000 // more than there are in a measurement
	mailWarm    = 200_000   // at most
	storedMails = 120_000   // that nobody reads
	offeredRate = 100_000   // mails a second
	offeredWarm = 5 * time.Second
	offeredRuns = 5 // of which that counts in which other processes used least
	waitingMost = 1_000_000
	waitingSize = 256 // bytes of a body
	cutFor      = 20 * time.Second
	cutMails    = 100_000
	topicSubs   = 10
)

// Targets of mail.
const (
	mailDurable  = 100_000. // mails a second
	mailRelaxed  = 120_000.
	overAlways   = 20. // of NATS that syncs every message
	overDefault  = 2.  // of NATS with its default
	offeredP99   = 10 * time.Millisecond
	offeredP999  = 20 * time.Millisecond
	offeredSlow  = 20 * time.Millisecond // p99 with a slower disk
	offeredKept  = .99                   // of the rate
	offeredBytes = 200.                  // allocated by the node for a mail
	mailOne      = 5 * time.Millisecond  // p99 of one at a time
	mailOneMore  = 300 * time.Microsecond
	mailHTTP     = 15_000.
	mailHTTPMany = 50_000.
	mailJSON     = 40_000.
	mailFar      = 40_000.
	cutFirst     = 2 * time.Second
	cutAll       = 5 * time.Second
	topicSent    = 20_000.
	topicGiven   = 200_000.
	waitingIdle  = 64 << 20  // bytes of the idle program
	waitingLimit = 120 << 20 // bytes above those of the idle node
	waitingStart = 3 * time.Second
)

// stream returns a load of the mailbox of a node over two connections in frames.
func (p *plan) stream(socket string) mailLoad {
	n := mailTasks / p.scale
	return mailLoad{
		Form: inFrames, Socket: socket, To: mailboxHere, Batch: mailBatch, Size: bodySize, From: socket, Box: mailboxHere, Subs: []string{""},
		Warm: min(n/4, mailWarm) / mailBatch * mailBatch, Mails: n, Limit: longest, Flying: mailFlying,
	}
}

// posted runs a load of mail on a new node; change adapts it. name is that of profiles.
func (p *plan) posted(name string, slow time.Duration, subs int, change func(*mailLoad)) (r result, err error) {
	err = p.withPost(slow, subs, func(x *post) error {
		l := p.stream(x.socket)
		change(&l)
		r, err = p.mailed(name, l, x.client, x.node)
		return err
	})
	return r, err
}

func (p *plan) withPost(slow time.Duration, subs int, f func(*post) error) error {
	dir, err := p.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	x, err := newPost(dir, slow, subs, rateMemory)
	if err != nil {
		return err
	}
	return errors.Join(f(x), x.end())
}

// mailed runs a load of mail in a client and measures it and the nodes.
func (p *plan) mailed(name string, l mailLoad, client *proc, nodes ...*proc) (result, error) {
	l.Profile = p.mailProfile(name)
	return p.measureMail(name, request{Do: "mails", Mail: l}, client, nodes...)
}

// measureMail measures a load in a client, whose profile has the name that this has.
func (p *plan) measureMail(name string, o request, client *proc, nodes ...*proc) (result, error) {
	profile := strings.TrimSuffix(p.mailProfile(name), "-a")
	r, err := measured(client, o, profile, nodes...)
	if err == nil {
		p.logMail(name, r)
	}
	return r, err
}

// mailProfile returns the file of the client's profile, if profiles are kept.
func (p *plan) mailProfile(name string) string {
	if p.profiles == "" {
		return ""
	}
	return filepath.Join(p.profiles, "mail-"+strings.ReplaceAll(name, " ", "-")+"-a")
}

func (p *plan) logMail(name string, r result) {
	fmt.Fprintf(p.log, "       %s: %.0f/s; CPU a mail %.1f + %.1f us, allocated %.0f + %.0f bytes; delivered p50 %v, p99 %v; others used %.1f cores\n", name, r.rate(),
		r.perTask(r.Usage.cpu()), r.perTask(r.Other.cpu()), 1024*r.allocated(r.Usage), 1024*r.allocated(r.Other), r.P50, r.P99, r.others())
}

// walks measures mail that is sent and read with package mailstream.
func (p *plan) walks(slow time.Duration, relaxed bool) (r result, err error) {
	err = p.withPost(slow, 0, func(x *post) error {
		if err := all(x.client, request{Do: "dialmailer", Path: x.socket, On: relaxed}); err != nil {
			return err
		}
		n := mailTasks / p.scale
		l := load{Target: mailboxHere, Until: accepted, Warm: min(n/4, mailWarm), Tasks: n, Limit: longest, Flying: mailFlying, Size: bodySize}
		l.Profile = p.mailProfile("mailer")
		r, err = p.measureMail("mailer", request{Do: "load", Load: l}, x.client, x.node)
		return err
	})
	return r, err
}

// mailRate measures mail on one node, compared with NATS JetStream in the same run.
func (p *plan) mailRate(t *table) error {
	t.title = "Mail on one node"
	t.intro = fmt.Sprintf("The node is one process, and the program that sends and reads is another one, over the unix socket. A mail of %d bytes counts when it was sent, delivered and acknowledged, and the acknowledgement is on disk. "+
		"`frames`: the binary WebSocket subprotocol, one connection that sends batches of %d and one that reads. `mailstream`: the same with the Mailer and ReadMail of api/client/mailstream, a goroutine for each mail in flight; here the node does not confirm acknowledgements. "+
		"Relaxed mail is answered before its fsync; its acknowledgement is as durable as the others'. NATS: nats-server 2.15.2 as above, file store, with `sync_interval: always`, and with its default, which syncs every two minutes. "+
		"%d messages are in flight in all rows. The rows of one disk speed are measured alternately, %d times each; the median is shown.", bodySize, mailBatch, mailFlying, times)
	t.head = []string{"fsync", "", "mails/s", "target", "", "of NATS, sync always", "target", "", "of NATS, default", "target", "", "delivered p50", "p99", "CPU a mail: client", "node", "allocated: client", "node", "cores: ours", "others'"}
	t.bounds = fmt.Sprintf("CPU: node and client share %d cores. With a slow disk the two sequential commits of a mail.", runtime.NumCPU())
	disks := []time.Duration{0, extra}
	if p.scale > 1 {
		disks = disks[:1]
	}
	for _, slow := range disks {
		frames := func(relaxed bool) func() (result, error) {
			return func() (result, error) {
				return p.posted("frames", slow, 0, func(l *mailLoad) { l.Relaxed = relaxed })
			}
		}
		ways := []struct {
			name   string
			f      func() (result, error)
			target float64
		}{
			{"frames, durable", frames(false), mailDurable},
			{"frames, relaxed", frames(true), mailRelaxed},
			{"mailstream, durable", func() (result, error) { return p.walks(slow, false) }, mailDurable},
			{"mailstream, relaxed", func() (result, error) { return p.walks(slow, true) }, mailRelaxed},
			{"NATS, sync always", func() (result, error) { return p.passedMail(rival{slow, true, mailFlying}) }, 0},
			{"NATS, default", func() (result, error) { return p.passedMail(rival{slow, false, mailFlying}) }, 0},
		}
		var fs []func() (result, error)
		for _, w := range ways {
			fs = append(fs, w.f)
		}
		rs, err := p.medians(fs...)
		if err != nil {
			return err
		}
		always, byDefault := rs[4].rate(), rs[5].rate()
		for i, w := range ways {
			cells := []any{disk(slow), w.name, rate(rs[i].rate())}
			if slow > 0 {
				w.target = 0
			}
			cells = append(cells, atLeast(rs[i].rate(), w.target)...)
			switch {
			case i >= 4:
				cells = append(cells, "", "", "", "", "", "")
			case slow > 0:
				cells = append(cells, ratio(rs[i].rate()/always, 0)...)
				cells = append(cells, ratio(rs[i].rate()/byDefault, 0)...)
			default:
				cells = append(cells, ratio(rs[i].rate()/always, overAlways)...)
				cells = append(cells, ratio(rs[i].rate()/byDefault, overDefault)...)
			}
			t.row(append(cells, mailCosts(rs[i])...)...)
		}
	}
	return nil
}

// passedMail measures NATS with as many messages as it passes in some seconds.
func (p *plan) passedMail(v rival) (result, error) {
	n := 400_000
	switch {
	case v.always && v.slow > 0:
		n = 4_000
	case v.always:
		n = 20_000
	}
	r, err := p.passed(v, n/min(p.scale, 4))
	if err == nil {
		p.logMail("NATS", r)
	}
	return r, err
}

// atLeast returns the cells of a target for a rate and its verdict; they are empty without one.
func atLeast(got, target float64) []any {
	if target == 0 {
		return []any{"", ""}
	}
	return []any{"≥ " + rate(target), verdict(got >= target)}
}

// under is like atLeast for a limit.
func under(got, limit float64, unit string) []any {
	if limit == 0 {
		return []any{"", ""}
	}
	return []any{"≤ " + rate(limit) + unit, verdict(got <= limit)}
}

// ratio returns the cells of a ratio, its target and the verdict; without a target those are
// empty.
func ratio(got, target float64) []any {
	cells := []any{fmt.Sprintf("%.2f", got), "", ""}
	if target > 0 {
		cells[1], cells[2] = fmt.Sprintf("≥ %g", target), verdict(got >= target)
	}
	return cells
}

// atMost returns the cells of a time, its limit and the verdict.
func atMost(got, limit time.Duration) []any {
	return []any{ms(got), "≤ " + limit.String(), verdict(got <= limit)}
}

// mailCosts returns the cells from the latencies on.
func mailCosts(r result) []any {
	return append([]any{msIf(r.P50), msIf(r.P99)}, mailCPU(r)...)
}

func mailCPU(r result) []any {
	return append([]any{us(r.perTask(r.Usage.cpu())) + " us", us(r.perTask(r.Other.cpu())) + " us", bytesOf(r.allocated(r.Usage)), bytesOf(r.allocated(r.Other))}, cores(r)...)
}

func bytesOf(kib float64) string { return rate(kib*1024) + " B" }

// msIf formats a time that was measured.
func msIf(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return ms(d)
}

// mailOffered measures the latency of mail at a fixed rate.
func (p *plan) mailOffered(t *table) error {
	warm := min(offeredWarm, p.span/2)
	runs := offeredRuns
	if p.scale > 1 {
		runs = 1
	}
	t.title = "Mail at a fixed rate"
	t.intro = fmt.Sprintf("As above, `frames`, with %d mails a second for %v after %v of warm-up. A mail is sent when it is due, whatever became of those before it, and its time counts from then. Of %d runs the one is shown in which other processes used least CPU; that is in the last column. "+
		"The rate is kept if %.0f %% of it was delivered and acknowledged.", p.offered, p.span, warm, runs, 100*offeredKept)
	t.head = []string{"fsync", "mail", "mails/s", "target", "", "answered p50", "p99", "delivered p50", "p99", "target", "", "p99.9", "target", "", "allocated by the node", "target", "", "CPU a mail: client", "node", "allocated: client", "node", "cores: ours", "others'"}
	t.bounds = "the collector and the scheduler of both processes, which share the cores with whatever else runs: the times hold on an idle machine only."
	for _, c := range []struct {
		slow    time.Duration
		relaxed bool
		p99     time.Duration
	}{{0, false, offeredP99}, {0, true, offeredP99}, {extra, false, offeredSlow}} {
		if p.scale > 1 && (c.slow > 0 || c.relaxed) {
			continue
		}
		name := "durable"
		if c.relaxed {
			name = "relaxed"
		}
		var all []result
		for range runs {
			r, err := p.posted("offered "+name, c.slow, 0, func(l *mailLoad) {
				l.Flying, l.Offered, l.Relaxed = 0, p.offered, c.relaxed
				l.Warm, l.Mails = mailsIn(p.offered, warm), mailsIn(p.offered, p.span)
				l.Limit = p.span + 10*time.Second
			})
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		r := quietest(all)
		cells := []any{disk(c.slow), name, rate(r.rate())}
		cells = append(cells, atLeast(r.rate(), offeredKept*float64(p.offered))...)
		cells = append(cells, ms(r.Mail.Sent50), ms(r.Mail.Sent99), ms(r.P50))
		cells = append(cells, atMost(r.P99, c.p99)...)
		if c.slow == 0 {
			cells = append(cells, atMost(r.Mail.P999, offeredP999)...)
		} else {
			cells = append(cells, ms(r.Mail.P999), "", "")
		}
		garbage := 1024 * r.allocated(r.Other)
		cells = append(cells, rate(garbage)+" B", "< "+rate(offeredBytes)+" B", verdict(garbage < offeredBytes))
		t.row(append(cells, mailCPU(r)...)...)
	}
	return nil
}

// mailsIn returns the number of mails, whole batches, that are due in some time.
func mailsIn(perSecond int, d time.Duration) int {
	return int(float64(perSecond)*d.Seconds()) / mailBatch * mailBatch
}

// quietest returns the result during which other processes used least.
func quietest(all []result) result {
	return slices.MinFunc(all, func(a, b result) int { return int(a.others()*1e6) - int(b.others()*1e6) })
}

// mailOneByOne measures one mail at a time, compared with its lower bound.
func (p *plan) mailOneByOne(t *table) error {
	t.title = "One mail at a time"
	t.intro = "As above, `frames`: the next mail is sent when the acknowledgement of the last one is on disk. The limit is three fsyncs of a record in the same folder and hour, and 0.3 ms."
	t.head = []string{"", "answered p50", "limit", "", "p99", "limit", "", "delivered p50", "p99", "fsync", "others' cores"}
	t.bounds = "one commit until the answer, and the wake-ups of the goroutines between them."
	return p.withPost(0, 0, func(x *post) error {
		l := p.stream(x.socket)
		l.Batch, l.Flying, l.Warm, l.Mails = 1, 1, 500, 20_000/p.scale
		r, err := p.mailed("one", l, x.client, x.node)
		if err != nil {
			return err
		}
		fsync, err := x.node.ask(request{Do: "sync", Path: x.dir}, nil)
		if err != nil {
			return err
		}
		cells := append([]any{"frames"}, atMost(r.Mail.Sent50, (3*fsync.Took+mailOneMore).Round(10*time.Microsecond))...)
		cells = append(cells, atMost(r.Mail.Sent99, mailOne)...)
		t.row(append(cells, ms(r.P50), ms(r.P99), ms(fsync.Took), us(r.others()))...)
		return nil
	})
}

// mailHTTPRates measures the other ways to a node.
func (p *plan) mailHTTPRates(t *table) error {
	t.title = "Mail over HTTP and in JSON"
	t.intro = fmt.Sprintf("One node and one client as above. HTTP: api/client, %d callers, or %d with batches of %d; a mail counts when it is on disk, nobody reads it. WebSocket: one connection that sends batches of %d and one that reads; a mail counts when its acknowledgement is on disk, too. The median of %d alternating runs.",
		callers, callers/16, batchSize, mailBatch, times)
	t.head = []string{"way", "a mail is", "mails/s", "target", "", "p50", "p99", "CPU a mail: client", "node", "allocated: client", "node", "cores: ours", "others'"}
	t.bounds = "CPU on both ends of the socket: HTTP, JSON and base64 of the body."
	ways := []struct {
		name, counts string
		f            func() (result, error)
		target       float64
	}{
		{"HTTP", "sent", func() (result, error) { return p.requested(0, callers) }, mailHTTP},
		{fmt.Sprintf("HTTP, batches of %d", batchSize), "sent", func() (result, error) { return p.requested(batchSize, callers/16) }, mailHTTPMany},
		{"WebSocket, JSON", "sent, delivered, acknowledged", func() (result, error) {
			return p.posted("documents", 0, 0, func(l *mailLoad) { l.Form = inDocuments; l.Warm /= 4 })
		}, mailJSON},
	}
	var fs []func() (result, error)
	for _, w := range ways {
		fs = append(fs, w.f)
	}
	rs, err := p.medians(fs...)
	if err != nil {
		return err
	}
	for i, w := range ways {
		cells := append([]any{w.name, w.counts, rate(rs[i].rate())}, atLeast(rs[i].rate(), w.target)...)
		t.row(append(cells, mailCosts(rs[i])...)...)
	}
	return nil
}

// requested measures mail that is sent by HTTP.
func (p *plan) requested(batch, inFlight int) (r result, err error) {
	err = p.withPost(0, 0, func(x *post) error {
		if err := all(x.client, request{Do: "dialmail", Path: x.socket}); err != nil {
			return err
		}
		n := min(mailTasks/p.scale, storedMails) / batchSize * batchSize
		l := load{Target: mailboxHere, Until: stored, Warm: n / 4 / batchSize * batchSize, Tasks: n, Limit: longest, Flying: inFlight, Size: bodySize, Batch: batch}
		l.Profile = p.mailProfile("HTTP")
		r, err = p.measureMail("HTTP", request{Do: "load", Load: l}, x.client, x.node)
		return err
	})
	return r, err
}

// mailTopic measures a topic that many read.
func (p *plan) mailTopic(t *table) error {
	t.title = "A topic with many subscriptions"
	t.intro = fmt.Sprintf("One node and one client as above, `frames`. The topic has %d subscriptions of everything, each with a reader on a connection of its own. A mail counts when each of them was given it and the last acknowledgement is on disk.", topicSubs)
	t.head = []string{"subscriptions", "published/s", "target", "", "delivered/s", "target", "", "delivered p50", "p99", "CPU a mail: client", "node", "allocated: client", "node", "cores: ours", "others'"}
	t.bounds = "CPU: each mail is written once, and framed, sent and acknowledged once for each subscription."
	r, err := p.median(func() (result, error) {
		return p.posted("topic", 0, topicSubs, func(l *mailLoad) {
			l.To, l.Box, l.Subs = topicHere, topicHere, nil
			for i := range topicSubs {
				l.Subs = append(l.Subs, subName(i))
			}
			l.Warm, l.Mails = l.Warm/5/mailBatch*mailBatch, l.Mails/5
		})
	})
	if err != nil {
		return err
	}
	cells := append([]any{topicSubs, rate(r.rate())}, atLeast(r.rate(), topicSent)...)
	cells = append(cells, rate(topicSubs*r.rate()))
	cells = append(cells, atLeast(topicSubs*r.rate(), topicGiven)...)
	t.row(append(cells, mailCosts(r)...)...)
	return nil
}

// mailTwoNodes measures mail from one node to a mailbox of another.
func (p *plan) mailTwoNodes(t *table) error {
	t.title = "Mail between two nodes"
	t.intro = fmt.Sprintf("Three processes: the node of the sender, that of the mailbox, and the client of both, `frames`. A mail counts when its acknowledgement is on disk at the node of the mailbox. The median of %d runs. ", times) +
		fmt.Sprintf("The cut: the node of the mailbox is in a network namespace of its own, whose packets are all dropped for %v, and the reader is attached. Meanwhile %d mails are sent; the times count from the end of the cut.", cutFor, cutMails/p.scale)
	t.head = []string{"", "result", "target", "", "delivered p50", "p99", "CPU a mail: client", "nodes", "allocated: client", "nodes", "cores: ours", "others'"}
	t.bounds = "CPU of three processes; after a cut the time until one of the nodes tries to connect again."
	r, err := p.median(func() (result, error) { return p.sentFar() })
	if err != nil {
		return err
	}
	cells := append([]any{"mails/s", rate(r.rate())}, atLeast(r.rate(), mailFar)...)
	t.row(append(cells, mailCosts(r)...)...)
	first, last, err := p.sentOverCut()
	if errors.Is(err, errNoNamespace) {
		t.row("after a cut", "not measured: "+err.Error(), "≤ "+cutFirst.String()+" and "+cutAll.String(), missed, "", "", "", "", "", "", "", "")
		return nil
	}
	if err != nil {
		return err
	}
	t.row(append(append([]any{"first after a cut"}, atMost(first, cutFirst)...), "", "", "", "", "", "", "", "")...)
	t.row(append(append([]any{fmt.Sprintf("all %d", cutMails/p.scale)}, atMost(last, cutAll)...), "", "", "", "", "", "", "", "")...)
	return nil
}

// mailboxThere is the mailbox of the second node, for the first one.
const mailboxThere = mailboxHere + "@b"

func (p *plan) withRemotePair(cuttable bool, f func(*remotePair) error) error {
	dir, err := p.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	x, err := newRemotePair(dir, cuttable)
	if err != nil {
		return err
	}
	return errors.Join(f(x), x.end())
}

func (p *plan) sentFar() (r result, err error) {
	err = p.withRemotePair(false, func(x *remotePair) error {
		return with("client", func(c *proc) error {
			l := p.stream(x.socketA)
			l.To, l.From, l.Warm, l.Mails = mailboxThere, x.socketB, l.Warm/4, l.Mails/4
			r, err = p.mailed("two nodes", l, c, x.b, x.a)
			return err
		})
	})
	return r, err
}

// sentOverCut returns when the first and the last mail arrive after a cut.
func (p *plan) sentOverCut() (first, last time.Duration, err error) {
	err = p.withRemotePair(true, func(x *remotePair) error {
		return with("reader", func(reader *proc) error {
			return with("client", func(c *proc) error {
				first, last, err = p.overCut(x, c, reader)
				return err
			})
		})
	})
	return first, last, err
}

func (p *plan) overCut(x *remotePair, sender, reader *proc) (first, last time.Duration, err error) {
	n := cutMails / p.scale
	both := func(send, read mailLoad, meanwhile func() error) (report, error) {
		read.Form, read.From, read.Box, read.Subs, read.Mails, read.Limit = inFrames, x.socketB, mailboxHere, []string{""}, send.Mails, 0
		got := make(chan report, 1)
		failed := make(chan error, 1)
		attached := make(chan struct{})
		go func() {
			a, err := reader.ask(request{Do: "mails", Mail: read}, func() error { close(attached); return nil })
			got <- a.Report
			failed <- err
		}()
		<-attached
		_, err := sender.ask(request{Do: "mails", Mail: send}, nil)
		err = errors.Join(err, meanwhile())
		return <-got, errors.Join(err, <-failed)
	}
	send := mailLoad{Form: inFrames, Socket: x.socketA, To: mailboxThere, Batch: mailBatch, Size: bodySize, Flying: mailFlying}
	send.Mails = mailBatch // they connect
	if _, err := both(send, mailLoad{}, func() error { return nil }); err != nil {
		return 0, 0, err
	}
	if err := x.wire.cut(); err != nil {
		return 0, 0, err
	}
	end := time.Now().Add(p.cutFor())
	var healed time.Time
	send.Mails = n / mailBatch * mailBatch
	r, err := both(send, mailLoad{}, func() error {
		time.Sleep(time.Until(end))
		healed = time.Now()
		return x.wire.heal()
	})
	if err != nil {
		return 0, 0, err
	}
	first, last = r.Mail.First.Sub(healed), r.Mail.Last.Sub(healed)
	fmt.Fprintf(p.log, "       after a cut of %v: first of %d after %v, all after %v\n", p.cutFor(), send.Mails, first, last)
	return first, last, nil
}

// cutFor is how long the cut lasts; less in a quick run.
func (p *plan) cutFor() time.Duration { return max(cutFor/time.Duration(p.scale), 3*time.Second) }

// mailWaiting measures the memory and the start of a node with much waiting mail.
func (p *plan) mailWaiting(t *table) error {
	n := waitingMost / p.scale
	t.title = "Waiting mail"
	t.intro = fmt.Sprintf("Resident memory of a node with its default heap limit: idle for %v, then with %d mails of %d bytes that nobody reads (%v after the last), then of new processes that opened its folder, after kill -9 and after a stop. The start is that of the node until it serves. The first row is the program with an empty mailbox; the others are processes of the benchmarks, which have NATS in them, too.", idleFor, n, waitingSize, restFor)
	t.head = []string{"state", "resident", "limit", "", "above idle", "limit", "", "start", "limit", ""}
	t.bounds = "the index of the mail in memory; after kill -9 the records since the newest checkpoint."
	alone, err := p.idleProgram(datadir.EngineNuts, "mailbox", "add", mailboxName)
	if err != nil {
		return err
	}
	t.row("idle, the program", mib(alone), "≤ "+mib(waitingIdle), verdict(alone <= waitingIdle && alone > 0), "", "", "", "", "", "")
	dir, err := p.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	x, err := newPost(dir, 0, 0, 0)
	if err != nil {
		return err
	}
	return errors.Join(p.fillPost(t, x, n), x.end())
}

// fillPost fills a mailbox and opens it again.
func (p *plan) fillPost(t *table, x *post, n int) error {
	time.Sleep(idleFor)
	idle, err := x.node.ask(request{Do: "usage"}, nil)
	if err != nil {
		return err
	}
	t.row("idle", mib(idle.Usage.RSS), "", "", "", "", "", "", "", "")
	add := func(state string, start time.Duration) error {
		time.Sleep(restFor)
		u, err := x.node.ask(request{Do: "usage"}, nil)
		if err != nil {
			return err
		}
		above := u.Usage.RSS - idle.Usage.RSS
		cells := []any{state, mib(u.Usage.RSS), "", "", mib(above), "≤ " + mib(waitingLimit), verdict(above <= waitingLimit), "", "", ""}
		if start > 0 {
			cells = append(cells[:7], atMost(start, waitingStart)...)
		}
		t.row(cells...)
		return nil
	}
	l := p.stream(x.socket)
	l.Subs, l.Batch, l.Flying, l.Size, l.Warm, l.Mails, l.Limit = nil, 500, 8*500, waitingSize, 0, n/500*500, 0
	if _, err := p.mailed("waiting", l, x.client); err != nil {
		return err
	}
	if err := add(fmt.Sprintf("%d mails wait", l.Mails), 0); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		away func(*proc) error
	}{{"after kill -9", (*proc).kill}, {"after a stop", (*proc).end}} {
		if err := c.away(x.node); err != nil {
			return err
		}
		if x.node, err = spawn("node", 0); err != nil {
			return err
		}
		o, err := x.node.ask(request{Do: "open", Open: opening{Dir: x.dir, Engine: datadir.EngineNuts, Idle: true}}, nil)
		if err != nil {
			return err
		}
		if err := add(c.name, o.Took); err != nil {
			return err
		}
	}
	return nil
}
