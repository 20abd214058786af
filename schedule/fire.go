package schedule

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// due processes the due times that have come.
func (s *Scheduler) due(ctx context.Context, m *proto.Schedule, now time.Time) error {
	plan, err := Parse(m.Cron, m.Zone)
	if err != nil {
		return err
	}
	// It starts now, or the mark was set while the clock was far ahead: no due time until then has its task.
	if m.MarkMs == 0 || proto.Time(m.MarkMs).Sub(now) > Horizon {
		next := proto.Clone(m)
		next.MarkMs = now.UnixMilli()
		if err := s.put(ctx, next); err != nil {
			return err
		}
		m = next
	}
	fire, left := plan.Due(proto.Time(m.MarkMs), now, m.Missed, int(m.MissedCap))
	if left > 0 {
		next := proto.Clone(m)
		next.Skipped += uint64(left)
		next.MarkMs = now.UnixMilli()
		if len(fire) > 0 {
			next.MarkMs = fire[0].UnixMilli() - 1
		}
		if err := s.put(ctx, next); err != nil {
			return err
		}
		m = next
	}
	for _, t := range fire {
		next := proto.Clone(m)
		next.FiringMs = t.UnixMilli()
		if err := s.put(ctx, next); err != nil {
			return err
		}
		if err := s.fire(ctx, next); err != nil {
			return err
		}
		m = s.all[scheduleID{m.Queue, m.Name}]
	}
	return nil
}

// fire creates the task for the stored due time; the task may already exist.
func (s *Scheduler) fire(ctx context.Context, m *proto.Schedule) error {
	done, err := s.parts.Tasks.SubmitFor(ctx, request(m), m.Delegates)
	next := proto.Clone(m)
	switch {
	case err == nil:
		id, err := proto.ParseTaskID(done.ID)
		if err != nil {
			return err
		}
		next.Last, next.LastMs, next.Problem = id[:], m.FiringMs, ""
		next.Fired++
		s.lag.Observe(max(s.cfg.Clock.Now().Sub(proto.Time(m.FiringMs)).Seconds(), 0))
	case errors.Is(err, wire.ErrInvalid), errors.Is(err, wire.ErrDenied), errors.Is(err, wire.ErrKeyConflict):
		next.Problem, next.Skipped = proto.Clip(err.Error(), proto.MaxReason), m.Skipped+1
	default:
		return err
	}
	next.MarkMs, next.FiringMs = m.FiringMs, 0
	return s.put(ctx, next)
}

// request returns the request for the due time stored in m.
func request(m *proto.Schedule) wire.Request {
	c, o := m.Task, m.Task.GetOptions()
	return wire.Request{
		Target: proto.QueueTarget(m.Queue), Kind: c.GetKind(), Class: c.GetClass().Name(), TTL: wire.Duration(m.TtlMs) * wire.Duration(time.Millisecond), Order: c.GetOrderingKey(),
		OnDead: c.GetOnDead(), Args: c.GetArgs(), Body: c.GetBody(), Type: c.GetContentType(), Labels: c.GetLabels(), Retries: o.GetMaxAttempts(),
		Require: o.GetRequire(), Prefer: o.GetPrefer(), Mode: c.GetMode().Name(),
		Key: fmt.Sprintf("schedule/%s/%s/%s/%s", m.Queue, m.Name, fingerprint(m), proto.Time(m.FiringMs).Format(time.RFC3339)),
	}
}

// fingerprint distinguishes different definitions of a schedule.
func fingerprint(m *proto.Schedule) string {
	c, o, h := m.Task, m.Task.GetOptions(), sha256.New()
	fmt.Fprintf(h, "balefire/v1/schedule\x00%q %q %q %q %d %d %q %q %q %d %q %q %d", m.Cron, m.Zone, c.GetKind(), c.GetArgs(), c.GetClass(), c.GetMode(),
		c.GetOrderingKey(), c.GetOnDead(), c.GetContentType(), o.GetMaxAttempts(), o.GetRequire(), o.GetPrefer(), m.TtlMs)
	for _, k := range slices.Sorted(maps.Keys(c.GetLabels())) {
		fmt.Fprintf(h, " %q=%q", k, c.GetLabels()[k])
	}
	h.Write(c.GetBody())
	return hex.EncodeToString(h.Sum(nil)[:8])
}
