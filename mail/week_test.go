package mail

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// A week is a node whose mail is as that of many: most is read soon, some waits for days or
// until its time is over, some is refused, some is kept by a topic or waits for a node that is
// off. All sizes are a 256th of those of a node: a segment has 256 KiB, and a checkpoint is
// written each 1 MiB. So is what comes: in ten minutes less than a segment.
type week struct {
	*fixture
	rng     *rand.Rand
	day     time.Duration // what waits for days waits for one to four of these
	lane    *Lane
	made    int               // mails: the text of each begins with its number
	numbers map[string]string // by box and sequence
	acked   map[string]bool   // by number
	waiting map[string]int    // by box
	dead    uint64
	expires []time.Time // of agent:ttl
}

const (
	weekScale = 256
	weekSlack = 256 << 20 / weekScale
)

// TestMovesOverAWeek checks that the ledger has at most four times the bytes of the records that
// are needed, and 256 MiB (here 1 MiB, see [week]), at each simulated hour, and that the books of
// the boxes balance: each mail is in one state, has its own text, and is acknowledged once. The
// long form takes seven days, the short one six hours.
func TestMovesOverAWeek(t *testing.T) {
	hours := 6
	if days, err := strconv.Atoi(os.Getenv("BALEFIRE_MAIL_DAYS")); err == nil {
		hours = 24 * days
	}
	synctest.Test(t, func(t *testing.T) {
		w := &week{
			rng: rand.New(rand.NewPCG(1, 7)), day: (time.Duration(hours) * time.Hour / 7).Truncate(time.Minute),
			numbers: map[string]string{}, acked: map[string]bool{}, waiting: map[string]int{},
		}
		w.fixture = newFixtureOn(t, Config{CheckpointBytes: 256 << 20 / weekScale}, ledger.Config{Segment: 64 << 20 / weekScale, MaxBatch: 64 << 10, Ring: 1 << 20, Reserve: -1})
		defer func() { w.stop() }()
		w.boxes()
		most, moved := 0.0, int64(0)
		for hour := range hours {
			if hour%24 == 5 {
				_, m := w.Space()
				moved += m
				w.restart()
				w.lane = nil
			}
			for minute := range 60 {
				w.minute()
				if hour%24 == 3 && minute == 20 {
					w.comeBack()
				}
			}
			needed := w.books(hour%6 == 5 || hour == hours-1)
			size := w.log.Stats().Bytes
			most = max(most, float64(size-weekSlack)/float64(needed))
			if size > 4*needed+weekSlack {
				t.Fatalf("hour %d: the ledger has %d bytes, and needs %d", hour, size, needed)
			}
		}
		_, m := w.Space()
		if moved += m; moved == 0 {
			t.Error("nothing was moved")
		}
		t.Logf("counted: %d hours, %d mails, %d bytes moved; the ledger had at most %.2f times what was needed, and 256 MiB", hours, w.made, moved, most)
	})
}

func (w *week) boxes() {
	w.t.Helper()
	for _, s := range []box.BoxSettings{
		{Name: "agent:soon", Kind: box.Mailbox}, {Name: "agent:days", Kind: box.Mailbox, Mails: box.MaxMails}, {Name: "agent:ttl", Kind: box.Mailbox, Mails: box.MaxMails},
		{Name: "agent:fails", Kind: box.Mailbox}, {Name: "topic:orders", Kind: box.Topic, Age: w.day},
	} {
		if err := w.SetBox(w.t.Context(), s); err != nil {
			w.t.Fatal(err)
		}
	}
	for name, s := range map[string]box.SubSettings{"agent:fails": {Dead: 100, DeadAge: w.day}, "topic:orders": {Name: "billing"}} {
		if err := w.SetSub(w.t.Context(), name, s, box.Start{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// mail returns a letter with a number.
func (w *week) mail(ttl time.Duration) (letter []byte, number string) {
	w.made++
	number = strconv.Itoa(w.made)
	return w.letter(number+strings.Repeat(" ", 50+w.rng.IntN(600)), func(l *proto.Letter) { l.NotAfter = l.Created + ttl.Milliseconds() }), number
}

// numberOf returns the number of a letter; "": it has none.
func numberOf(letter []byte) string {
	l, err := proto.ParseLetter(letter)
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(l.Body), " ")
}

// wait returns a time from one to four days, to the half minute: books are balanced at full ones.
func (w *week) wait() time.Duration {
	return (w.day + time.Duration(w.rng.Int64N(int64(3*w.day)))).Truncate(time.Minute) + 30*time.Second
}

// minute sends what comes in a minute, and reads what is read soon.
func (w *week) minute() {
	w.t.Helper()
	var items []Item
	var numbers []string
	add := func(name string, n int, ttl func() time.Duration) {
		for range n {
			letter, number := w.mail(ttl())
			items, numbers = append(items, Item{Box: name, Letter: letter}), append(numbers, number)
		}
	}
	long := func() time.Duration { return 30 * 24 * time.Hour }
	add("agent:soon", 24, long)
	add("agent:days", 6, long)
	add("agent:fails", 1, long)
	add("topic:orders", 3, long)
	add("agent:ttl", 4, func() time.Duration {
		d := w.wait() / 4
		d = d.Truncate(time.Minute) + 30*time.Second
		w.expires = append(w.expires, time.Now().Add(d))
		return d
	})
	sent, err := w.Send(w.t.Context(), items, false)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, s := range sent {
		w.stored(items[i].Box, s, numbers[i])
	}
	for range 2 {
		letter, number := w.mail(long())
		if sent, err = w.Forward(w.t.Context(), []Outgoing{{Box: "agent:far", Home: homeID, Generation: 1, Letter: letter}}, true); err != nil {
			w.t.Fatal(err)
		}
		w.stored(box.SpoolPrefix+"agent:far", sent[0], number)
	}
	w.read("agent:soon", "", func(Delivery) Settlement { return Settlement{Op: box.Ack} })
	w.read("topic:orders", "billing", func(Delivery) Settlement { return Settlement{Op: box.Ack} })
	w.read("agent:fails", "", func(Delivery) Settlement { return Settlement{Op: box.Final} })
	w.read("agent:days", "", func(d Delivery) Settlement {
		if d.Redelivered {
			return Settlement{Op: box.Ack}
		}
		return Settlement{Op: box.Defer, Delay: w.wait()}
	})
	time.Sleep(time.Minute - time.Since(time.Now().Truncate(time.Minute)))
	synctest.Wait()
}

func (w *week) stored(name string, s Sent, number string) {
	w.t.Helper()
	if s.Code != proto.CodeOK || s.Duplicate {
		w.t.Fatalf("%s: %+v", name, s)
	}
	w.numbers[fmt.Sprint(name, s.Seq)] = number
	w.waiting[name]++
}

// read settles all that can be read now as how says.
func (w *week) read(name, sub string, how func(Delivery) Settlement) {
	w.t.Helper()
	for {
		got, err := w.Lease(w.t.Context(), Reading{Box: name, Subscription: sub, Reader: "week", Credit: 64}, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(got) == 0 {
			return
		}
		var what []Settlement
		for _, d := range got {
			number, key := numberOf(d.Letter), fmt.Sprint(name, d.Handle.Seq)
			if w.numbers[key] != number {
				w.t.Fatalf("mail %s is %q, want %q", key, number, w.numbers[key])
			}
			s := how(d)
			s.Handle = d.Handle
			what = append(what, s)
			switch {
			case s.Op == box.Ack && w.acked[number]:
				w.t.Fatalf("mail %s was acknowledged, and came again", key)
			case s.Op == box.Ack:
				w.acked[number] = true
			case s.Op == box.Final:
				w.dead++
			}
			if s.Op != box.Defer && sub == "" {
				w.waiting[name]--
			}
		}
		settled, err := w.Settle(w.t.Context(), name, sub, what)
		if err != nil {
			w.t.Fatal(err)
		}
		for i, r := range settled {
			if r.Code != proto.CodeOK {
				w.t.Fatalf("%+v: %s", what[i], r.Code.Name())
			}
		}
	}
}

// comeBack has the other node take all that waits for it.
func (w *week) comeBack() {
	w.t.Helper()
	name := box.SpoolPrefix + "agent:far"
	if w.lane == nil {
		var err error
		if w.lane, err = w.Lane(w.t.Context(), homeID); err != nil {
			w.t.Fatal(err)
		}
	}
	for w.waiting[name] > 0 {
		m, err := w.lane.Next(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range m.GetRuns() {
			w.waiting[name] -= int(r.GetCount())
		}
		r := m.GetRuns()[len(m.GetRuns())-1]
		if err := w.lane.Answer(w.t.Context(), &proto.Bundled{Number: m.GetNumber(), Code: proto.CodeOK, Boot: r.GetBoot(), UpToNumber: r.GetFirst() + uint64(r.GetCount()) - 1}); err != nil {
			w.t.Fatal(err)
		}
	}
	if w.waiting[name] < 0 {
		w.t.Fatalf("%d mails more were sent than waited", -w.waiting[name])
	}
}

// books compares what waits with what should, and returns the bytes of the records that are
// needed. With texts it reads each of them.
func (w *week) books(texts bool) (needed int64) {
	w.t.Helper()
	w.waiting["agent:ttl"] = 0
	for _, at := range w.expires {
		if time.Now().Before(at) {
			w.waiting["agent:ttl"]++
		}
	}
	names, all := map[box.BoxID]string{}, []box.Kept{}
	if err := w.View(w.t.Context(), func(s *box.State) {
		for _, id := range s.Boxes() {
			i, _ := s.Info(id)
			name, total := i.Settings.Name, uint64(i.Waiting)
			for state := box.Done; state <= box.Dropped; state++ {
				total += i.EndedAs(state)
			}
			if names[id] = name; total != i.Next-1 {
				w.t.Errorf("%s: %d mails of %d are in a state", name, total, i.Next-1)
			}
			if i.Settings.Kind != box.Topic && i.Waiting != w.waiting[name] {
				w.t.Errorf("%s: %d mails wait, want %d", name, i.Waiting, w.waiting[name])
			}
			if name == "agent:fails" && i.EndedAs(box.Dead) != w.dead {
				w.t.Errorf("%d mails are dead, want %d", i.EndedAs(box.Dead), w.dead)
			}
		}
		for _, k := range s.Places(box.Cursor{}) {
			all, needed = append(all, k), needed+int64(k.Length)
		}
	}); err != nil {
		w.t.Fatal(err)
	}
	for _, k := range all {
		if !texts {
			break
		}
		m, _, err := w.MailOf(w.t.Context(), k)
		if err != nil {
			w.t.Fatalf("mail %d of %s: %v", k.Seq, names[k.Box], err)
		}
		if is, want := numberOf(m.Letter), w.numbers[fmt.Sprint(names[k.Box], k.Seq)]; is != want {
			w.t.Fatalf("mail %d of %s is %q, want %q", k.Seq, names[k.Box], is, want)
		}
	}
	return needed
}
