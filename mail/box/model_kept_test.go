package box

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A modelDone is a mail that is done and kept.
type modelDone struct{ size, at int64 } // at: Unix seconds; 0: it is not known yet

// keep keeps a mail that is done, if its box keeps such mail.
func (m *model) keep(b *modelBox, seq uint64) {
	if x := b.mails[seq]; b.settings.Keep > 0 && !x.large {
		m.keepMail(b, seq, x)
	}
}

// keepMail keeps a mail, and forgets the oldest of what is too much.
func (m *model) keepMail(b *modelBox, seq uint64, x *modelMail) {
	b.done[seq] = modelDone{int64(x.size), 0}
	if m.at > 0 {
		b.done[seq] = modelDone{int64(x.size), max(x.when/1000, (m.at+999)/1000)}
	}
	b.trim()
	if m.limit == 0 || m.kept() <= m.limit {
		return
	}
	for limit := m.limit - m.limit/16; m.kept() > limit; {
		var most *modelBox
		for _, id := range slices.Sorted(maps.Keys(m.boxes)) {
			if b := m.boxes[id]; most == nil || b.kept() > most.kept() {
				most = b
			}
		}
		for half := most.kept() / 2; most.kept() > half && m.kept() > limit; {
			most.forgetOldest()
		}
	}
}

func (m *model) kept() (n int64) {
	for _, b := range m.boxes {
		n += b.kept()
	}
	return n
}

func (b *modelBox) forgetOldest() { b.forget(slices.Min(slices.Collect(maps.Keys(b.done)))) }

func (b *modelBox) forget(seq uint64) {
	delete(b.done, seq)
	delete(b.receipts, seq)
}

// forgetOld forgets what was done too long ago.
func (m *model) forgetOld() {
	for _, b := range m.boxes {
		for seq, x := range b.done {
			if x.at == 0 {
				x.at = (m.at + 999) / 1000
				b.done[seq] = x
			}
			keep := b.settings.Keep
			if b.settings.Kind == Spool {
				keep = 30 * 24 * time.Hour
			}
			if x.at*1000+keep.Milliseconds() <= m.at {
				b.forget(seq)
			}
		}
	}
}

// trim forgets the oldest of what a box keeps beyond its settings.
func (b *modelBox) trim() {
	most := int(b.settings.KeepMails)
	if most == 0 && b.settings.Keep > 0 {
		most = 10_000
	}
	for b.settings.Kind == Mailbox && len(b.done) > most {
		b.forgetOldest()
	}
}

// kept returns what the letters take that a box keeps.
func (b *modelBox) kept() (n int64) {
	for _, x := range b.done {
		n += x.size
	}
	return n
}

// keeps returns all that a box keeps, the newest first.
func (b *modelBox) keeps() (all []string) {
	states := map[uint64]string{}
	for seq := range b.done {
		states[seq] = "done"
	}
	for seq := range b.mails {
		states[seq] = "there"
	}
	if b.settings.Kind == Mailbox {
		for seq := range b.subs[0].dead {
			states[seq] = "dead"
		}
	}
	for _, seq := range slices.Backward(slices.Sorted(maps.Keys(states))) {
		all = append(all, fmt.Sprint(seq, " ", states[seq]))
	}
	return all
}
