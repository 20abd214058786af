package box

import (
	"fmt"
	"maps"
	"slices"
)

// A modelDone is a mail that is done and kept.
type modelDone struct{ size, at int64 } // at: Unix seconds; 0: it is not known yet

// keep keeps a mail that is done, and forgets the oldest of what is too much.
func (m *model) keep(b *modelBox, seq uint64) {
	if x := b.mails[seq]; b.settings.Keep > 0 && !x.large {
		b.done[seq] = modelDone{int64(x.size), 0}
		if m.at > 0 {
			b.done[seq] = modelDone{int64(x.size), max(x.when/1000, (m.at+999)/1000)}
		}
	}
	b.trim()
	if m.limit > 0 && b.kept() > m.limit {
		for b.kept() > m.limit-m.limit/16 {
			delete(b.done, slices.Min(slices.Collect(maps.Keys(b.done))))
		}
	}
}

// forgetOld forgets what was done too long ago.
func (m *model) forgetOld() {
	for _, b := range m.boxes {
		for seq, x := range b.done {
			if x.at == 0 {
				x.at = (m.at + 999) / 1000
				b.done[seq] = x
			}
			if x.at*1000+b.settings.Keep.Milliseconds() <= m.at {
				delete(b.done, seq)
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
	for len(b.done) > most {
		delete(b.done, slices.Min(slices.Collect(maps.Keys(b.done))))
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
