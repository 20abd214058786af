package idempotency

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

const (
	tickEvery  = time.Minute
	saveEvery  = 5 * time.Minute       // of age: the most that a kill may lose
	sweepEvery = 10 * time.Minute      // of age: between two sweeps while some key can be forgotten
	sweepStep  = 256                   // keys read at once
	sweepPause = 20 * time.Millisecond // between two steps, to leave the store to others
	never      = math.MaxInt64
)

// Run counts the keys, then deletes those past their period and stores the age,
// until ctx ends. It sweeps only when the oldest key is due.
func (k *Keys) Run(ctx context.Context) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		if err := k.tick(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Logger.Error("cannot sweep the idempotency keys; will retry", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			if err := k.saveIfUsed(context.WithoutCancel(ctx), 0); err != nil {
				k.cfg.Logger.Warn("idempotency keys will be kept a little longer", "err", err)
			}
			return
		}
	}
}

// tick sweeps and saves if that is due.
func (k *Keys) tick(ctx context.Context) error {
	if age := k.Age(); !k.counted || age-k.swept >= sweepEvery && k.due(age.Milliseconds()) {
		k.swept, k.counted = age, false
		if err := k.sweep(ctx); err != nil {
			return err
		}
		k.counted = true
	}
	return k.saveIfUsed(ctx, saveEvery)
}

// due reports whether some key may be forgotten.
func (k *Keys) due(age int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.oldest != never && expired(k.oldest, age, k.cfg.For)
}

// expired reports whether the period of a key made at age made has passed.
func expired(made, age int64, keep time.Duration) bool { return age-made >= keep.Milliseconds() }

// saveIfUsed stores the age if it has advanced by at least after and some key
// depends on it.
func (k *Keys) saveIfUsed(ctx context.Context, after time.Duration) error {
	k.mu.Lock()
	now, saved := k.state(), k.saved
	k.mu.Unlock()
	if now.kept+saved.kept == 0 || now == saved || now.age-saved.age < after.Milliseconds() {
		return nil
	}
	var b store.Batch
	k.saveIn(&b, now)
	if err := k.store.Apply(ctx, &b); err != nil {
		return fmt.Errorf("write the age of the idempotency keys: %w", err)
	}
	return nil
}

// sweep reads all keys once, counts them and deletes those that are due. The new
// count takes effect at the end; keys made in the meantime are added by Commit.
func (k *Keys) sweep(ctx context.Context) error {
	k.mu.Lock()
	before, first := k.kept, !k.owned
	owned := map[string]int{}
	for owner, s := range k.owners {
		owned[owner] = s.kept
	}
	k.oldest = never // lowered by what the sweep sees, and by Put
	k.mu.Unlock()
	tally := sweepTally{begin: k.Age().Milliseconds(), oldest: never, owned: map[string]int{}}
	from, to := []byte{k.cfg.Prefix}, []byte{k.cfg.Prefix + 1}
	for from != nil {
		pairs, next, err := k.store.Scan(store.Dedup, from, to, sweepStep)
		if err != nil {
			return fmt.Errorf("read idempotency keys: %w", err)
		}
		n, err := k.forget(ctx, k.count(pairs, &tally))
		if err != nil {
			return err
		}
		tally.forgotten += n
		wait := sweepPause
		if first {
			wait = 0 // the shares are not known yet
		}
		if from = next; from != nil && !clock.Pause(ctx, wait) {
			return ctx.Err()
		}
	}
	k.mu.Lock()
	k.oldest = min(k.oldest, tally.oldest)
	k.kept += tally.counted - before
	for owner, n := range owned {
		tally.owned[owner] -= n
	}
	k.owned = true
	for owner, n := range tally.owned {
		k.kept -= n // add counts it again
		k.add(owner, n, 0)
	}
	k.mu.Unlock()
	if tally.forgotten > 0 {
		k.cfg.Logger.Debug("idempotency keys were forgotten", "count", tally.forgotten, "kept", tally.counted)
	}
	return nil
}

// A sweepTally is the result of a sweep so far; ages are in milliseconds.
type sweepTally struct {
	begin     int64 // age at the beginning
	oldest    int64 // age at which the oldest remaining key was made
	counted   int   // remaining keys made before the beginning
	forgotten int
	owned     map[string]int // counted, by owner
}

// count counts pairs and returns those that are due.
func (k *Keys) count(pairs []store.Pair, t *sweepTally) (gone []store.Pair) {
	for _, p := range pairs {
		made, ok := stamp(p.Val)
		if ok && expired(made, t.begin, k.cfg.For) && !k.cfg.Needed(p.Val[stampLen:]) {
			gone = append(gone, p)
			continue
		}
		if made <= t.begin {
			t.counted++
			t.owned[k.cfg.Owner(p.Key[1:])]++
		}
		t.oldest = min(t.oldest, made)
	}
	return gone
}

// stamp returns the age at which the key of a value was made. An unreadable one
// counts as new: it is kept.
func stamp(val []byte) (made int64, ok bool) {
	if len(val) < stampLen {
		return never - 1, false
	}
	u := binary.BigEndian.Uint64(val)
	if u > uint64(maxAge) {
		return never - 1, false
	}
	return int64(u), true
}

// forget deletes keys that are due, unless they were made again since they were
// read, and returns how many it deleted.
func (k *Keys) forget(ctx context.Context, gone []store.Pair) (n int, err error) {
	if len(gone) == 0 {
		return 0, nil
	}
	batches := make([]*store.Batch, len(gone))
	for i, p := range gone {
		b := new(store.Batch)
		b.RequireEqual(store.Dedup, p.Key, p.Val)
		b.Delete(store.Dedup, p.Key)
		batches[i] = b
	}
	for _, err := range k.store.ApplyMany(ctx, batches) {
		switch {
		case err == nil:
			n++
		case !errors.Is(err, store.ErrConflict):
			return n, fmt.Errorf("forget idempotency keys: %w", err)
		}
	}
	return n, nil
}
