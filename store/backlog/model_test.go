package backlog

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

// A simple is an entry of the model.
type simple struct {
	key     Key
	group   string
	class   proto.Class
	lane    string
	arrival int // order among ready entries
	seq     int // order in the lane
	due     time.Duration
	diskDue time.Duration // what the record says
	ttl     time.Duration // in the record, -1: none
	expires time.Duration // when TakeExpired returns it, -1: never
	taken   bool
	parked  bool
}

// A model is a simple, slow backlog.
type model struct {
	w        *fixture
	now      time.Duration
	live     []*simple
	held     []*simple // dead and blocking their lanes
	arrivals int
	done     int
	dead     int
}

func (m *model) find(k Key) *simple {
	i := slices.IndexFunc(m.live, func(s *simple) bool { return s.key == k })
	if i < 0 {
		return nil
	}
	return m.live[i]
}

// free reports whether s may be taken now.
func (m *model) free(s *simple) bool {
	if s.taken || s.parked || s.due > m.now {
		return false
	}
	for _, o := range append(m.held, m.live...) {
		if s.lane != "" && o.lane == s.lane && o.seq < s.seq {
			return false
		}
	}
	return true
}

// checkTaken compares the result of taking everything with the model.
func (m *model) checkTaken(t *rapid.T, group string, got []Item) {
	want := map[Key]*simple{}
	for _, s := range m.live {
		if s.group == group && m.free(s) {
			want[s.key] = s
		}
	}
	last := map[proto.Class]int{}
	for _, it := range got {
		s := want[it.Key]
		if s == nil {
			t.Fatalf("took %v of %s, which is not free in the model", it.Key, group)
		}
		if b, ok := last[s.class]; ok && b > s.arrival {
			t.Fatalf("took a younger one of class %v before an older", s.class)
		}
		last[s.class] = s.arrival
		delete(want, it.Key)
		s.taken = true
	}
	if len(want) > 0 {
		t.Fatalf("left %d of %s, which are free in the model", len(want), group)
	}
}

func (m *model) remove(s *simple) {
	m.live = slices.DeleteFunc(m.live, func(o *simple) bool { return o == s })
}

// reopen applies a restart to the model: memory is lost.
func (m *model) reopen() {
	byID := slices.Clone(m.live)
	slices.SortFunc(byID, func(a, b *simple) int { return a.key.ID.Compare(b.key.ID) })
	for _, s := range byID {
		s.taken, s.due, s.expires = false, s.diskDue, s.ttl
		m.arrivals++
		s.arrival = m.arrivals
	}
}

// check compares the counts.
func (m *model) check(t *rapid.T) {
	st := m.w.Stats()
	if st.Live != len(m.live) || st.Done != m.done || st.Dead != m.dead {
		t.Fatalf("counts: live %d done %d dead %d, the model has %d %d %d", st.Live, st.Done, st.Dead, len(m.live), m.done, m.dead)
	}
	if st.Live == 0 && st.Bytes != 0 {
		t.Fatalf("%d bytes in an empty backlog", st.Bytes)
	}
	states := map[proto.TaskState]int{}
	for _, s := range m.live {
		if s.parked {
			states[accepted]++
		} else {
			states[pending]++
		}
	}
	for _, s := range []proto.TaskState{pending, accepted} {
		if st.ByState[s] != states[s] {
			t.Fatalf("%d %v, the model has %d", st.ByState[s], s.Name(), states[s])
		}
	}
}

// TestModel compares the backlog with the model over random histories: what may be taken
// when (I10, S15), what a restart finds (I1), and the counts (I11).
func TestModel(outer *testing.T) {
	start := time.UnixMilli(1_700_000_000_000)
	groups, lanes := []string{"p", "q"}, []string{"", "", "a", "b"}
	rapid.Check(outer, func(t *rapid.T) {
		w := newFixture(outer, Config{Parked: func(_ Key, r *proto.Record) bool { return r.State == accepted }})
		m := &model{w: w}
		group := rapid.SampledFrom(groups)
		some := func(act func(*rapid.T, *simple)) func(*rapid.T) {
			return func(t *rapid.T) {
				if len(m.live) > 0 {
					act(t, rapid.SampledFrom(m.live).Draw(t, "entry"))
				}
			}
		}
		wall := func(d time.Duration) int64 { return start.Add(d).UnixMilli() }
		t.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"add": func(t *rapid.T) {
				s := &simple{
					group: group.Draw(t, "group"), class: proto.Class(rapid.IntRange(1, 4).Draw(t, "class")),
					lane: rapid.SampledFrom(lanes).Draw(t, "lane"), ttl: -1, expires: -1,
				}
				n := w.task(s.group, s.class)
				r := n.Stored.Record
				r.OrderingKey = s.lane
				if rapid.Bool().Draw(t, "block") {
					r.OnDead = "block"
				}
				if d := time.Duration(rapid.IntRange(0, 3).Draw(t, "delay")) * time.Second; d > 0 {
					s.diskDue = m.now + d
					r.DueMs = wall(s.diskDue)
				}
				if d := rapid.IntRange(0, 9).Draw(t, "ttl"); d > 0 {
					s.ttl = m.now + time.Duration(d)*time.Second
					s.expires = s.ttl
					r.NotAfterMs = wall(s.ttl)
				}
				w.add(n)
				m.arrivals++
				s.key, s.due, s.arrival, s.seq = n.Key, s.diskDue, m.arrivals, int(w.n)
				m.live = append(m.live, s)
			},
			"take": func(t *rapid.T) {
				g := group.Draw(t, "group")
				m.checkTaken(t, g, w.Take(nil, g, 1000))
			},
			"take any": func(t *rapid.T) {
				it, ok := w.TakeAny(nil, nil)
				free := slices.ContainsFunc(m.live, m.free)
				if ok != free {
					t.Fatalf("took something: %v, the model: %v", ok, free)
				}
				if !ok {
					return
				}
				s := m.find(it.Key)
				if s == nil || !m.free(s) {
					t.Fatalf("took %v, which is not free in the model", it.Key)
				}
				s.taken = true
			},
			"release": some(func(t *rapid.T, s *simple) {
				d := time.Duration(rapid.IntRange(0, 3).Draw(t, "wait")) * time.Second
				if w.Release(s.key, d) != s.taken {
					t.Fatalf("release of a taken entry: %v", s.taken)
				}
				if s.taken {
					s.taken, s.due = false, m.now+d
				}
			}),
			"park": some(func(_ *rapid.T, s *simple) {
				w.change(s.key, func(r *proto.Record) Action { r.State = accepted; return Write })
				s.parked, s.taken, s.expires = true, false, s.ttl
			}),
			"note": some(func(_ *rapid.T, s *simple) {
				w.change(s.key, func(r *proto.Record) Action { r.Reason = "noted"; return Write })
				s.expires = s.ttl
			}),
			"keep": some(func(_ *rapid.T, s *simple) {
				w.change(s.key, func(*proto.Record) Action { return Keep })
			}),
			"requeue": some(func(t *rapid.T, s *simple) {
				d := time.Duration(rapid.IntRange(0, 3).Draw(t, "wait")) * time.Second
				w.change(s.key, func(r *proto.Record) Action {
					r.State, r.DueMs = pending, wall(m.now+d)
					r.Attempts++
					return Requeue
				})
				s.parked, s.taken, s.due, s.diskDue, s.expires = false, false, m.now+d, m.now+d, s.ttl
			}),
			"succeed": some(func(_ *rapid.T, s *simple) {
				w.end(s.key, success)
				m.remove(s)
				m.done++
			}),
			"fail": some(func(t *rapid.T, s *simple) {
				r, _, err := w.Get(s.key)
				if err != nil {
					t.Fatal(err)
				}
				w.end(s.key, failed)
				m.remove(s)
				m.dead++
				if r.OnDead == "block" && s.lane != "" {
					m.held = append(m.held, s)
				}
			}),
			"drop": some(func(_ *rapid.T, s *simple) {
				w.change(s.key, func(*proto.Record) Action { return Drop })
				m.remove(s)
			}),
			"purge": func(t *rapid.T) {
				if n, err := w.Purge(t.Context(), Dead, nil, true); err != nil || n != m.dead {
					t.Fatalf("a dry run counts %d dead, the model %d: %v", n, m.dead, err)
				}
				if n, err := w.Purge(t.Context(), Dead, nil, false); err != nil || n != m.dead {
					t.Fatalf("purged %d dead, the model has %d: %v", n, m.dead, err)
				}
				m.dead, m.held = 0, nil
			},
			"expire": func(t *rapid.T) {
				var want []Key
				for _, s := range m.live {
					if s.expires >= 0 && s.expires <= m.now {
						want = append(want, s.key)
						s.expires = m.now + 2*time.Second
					}
				}
				var got []Key
				for _, it := range w.TakeExpired(nil, 1000, 2*time.Second) {
					got = append(got, it.Key)
				}
				byID := func(a, b Key) int { return cmp.Or(a.ID.Compare(b.ID), int(a.Part)-int(b.Part)) }
				slices.SortFunc(want, byID)
				slices.SortFunc(got, byID)
				if !slices.Equal(got, want) {
					t.Fatalf("expired %v, the model has %v", got, want)
				}
			},
			"time": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * 500 * time.Millisecond
				w.clock.Advance(d)
				m.now += d
			},
			"restart": func(t *rapid.T) {
				w.reopen()
				m.reopen()
			},
		})
	})
}
