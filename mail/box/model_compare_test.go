package box

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// compare checks that state and model have the same mails in the same states.
func (m *model) compare(s *State) error {
	for id, b := range m.boxes {
		if err := b.compare(s, id); err != nil {
			return err
		}
	}
	if s.bytes != m.bytes() {
		return fmt.Errorf("%d bytes, want %d", s.bytes, m.bytes())
	}
	if !bytes.Equal(s.chains.Save(), m.notes.Save()) {
		return fmt.Errorf("chains differ")
	}
	return m.compareProducers(s)
}

// compare checks that box id has what b has.
func (b *modelBox) compare(s *State, id BoxID) error {
	i, ok := s.Info(id)
	if !ok || i.Waiting != len(b.mails) || i.Next != b.next || i.Bytes != b.waiting() {
		return fmt.Errorf("box %d: %+v; want %d mails, next %d, %d bytes", id, i, len(b.mails), b.next, b.waiting())
	}
	total := uint64(i.Waiting)
	for state := Done; state < mailStates; state++ {
		if i.EndedAs(state) != uint64(b.counts[state]) {
			return fmt.Errorf("box %d: %d ended as %v, want %d", id, i.EndedAs(state), state, b.counts[state])
		}
		total += i.EndedAs(state)
	}
	if total != b.next-1 {
		return fmt.Errorf("box %d: %d mails of %d are somewhere (I21)", id, total, b.next-1)
	}
	var kept []string
	for x := range s.Kept(id, 0) {
		state := "there"
		switch {
		case x.State == Dead:
			state = "dead"
		case x.State == Done && b.settings.Kind != Topic:
			state = "done"
		}
		kept = append(kept, fmt.Sprint(x.Seq, " ", state))
	}
	if !slices.Equal(kept, b.keeps()) {
		return fmt.Errorf("box %d keeps %q, want %q", id, kept, b.keeps())
	}
	if err := b.compareSubs(s, id); err != nil {
		return err
	}
	return b.compareTold(s, id)
}

func (b *modelBox) compareSubs(s *State, id BoxID) error {
	for sid, u := range b.subs {
		var got []uint64
		for x := range s.Mails(id, sid, 0) {
			got = append(got, x.Seq)
			attempts, abandons := u.spent(x.Seq)
			if x.Attempts != attempts || x.Abandons != abandons || u.tries[x.Seq] != nil && x.Due != u.tries[x.Seq].due {
				return fmt.Errorf("mail %d of %d/%d spent %d attempts and %d abandons, want %d and %d", x.Seq, id, sid, x.Attempts, x.Abandons, attempts, abandons)
			}
		}
		if !slices.Equal(got, b.pending(u)) {
			return fmt.Errorf("%d/%d has %v, want %v", id, sid, got, b.pending(u))
		}
		if i, _ := s.SubInfo(id, sid); i.Blocked != len(u.blocked) {
			return fmt.Errorf("%d/%d has %d blocked lanes, want %d", id, sid, i.Blocked, len(u.blocked))
		}
		dead := 0
		for x := range s.DeadLetters(id, sid, 0) {
			if dead++; u.dead[x.Seq] != x.Size {
				return fmt.Errorf("%d/%d has the dead letter %+v", id, sid, x)
			}
		}
		if dead != len(u.dead) {
			return fmt.Errorf("%d/%d has %d dead letters, want %d", id, sid, dead, len(u.dead))
		}
	}
	return nil
}

// compareTold checks whose senders are to be told, and what a spool keeps of its homes.
func (b *modelBox) compareTold(s *State, id BoxID) error {
	var untold []uint64
	for _, k := range s.Untold(1 << 20) {
		if k.Box == id {
			untold = append(untold, k.Seq)
		}
	}
	if want := slices.Sorted(maps.Keys(b.untold)); !slices.Equal(untold, want) {
		return fmt.Errorf("box %d: the senders of %v are to be told, want %v (I21)", id, untold, want)
	}
	if s.Receipts(id) != len(b.receipts) {
		return fmt.Errorf("box %d has %d receipts, want %d", id, s.Receipts(id), len(b.receipts))
	}
	for seq, want := range b.receipts {
		if proof, ok := s.Receipt(id, seq); !ok || string(proof) != want {
			return fmt.Errorf("box %d: the receipt of %d is %q, want %q", id, seq, proof, want)
		}
	}
	return nil
}
