package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
)

// The size of a 1 KiB task in the store of its home if it was signed in a group of 64 to
// 128, as measured by BenchmarkSubmit in node/.
const (
	recordSize = 1800 // bytes of the value
	keySize    = 18
)

// noiseSize is the size of the incompressible bytes from which bare records are taken:
// sealed bodies do not compress, and an engine that compresses would write less.
const noiseSize = 16 << 20

// A storeLoadConfig is callers of a bare store, each of which commits one record after the
// other.
type storeLoadConfig struct {
	Dir     string
	Engine  string
	Callers int
	Records int // that are measured, after a quarter more as warm-up
	Limit   time.Duration
	Profile string // file of a CPU profile of the measurement; empty: none
}

// measureStore measures the group commit of the store without anything above it.
func (c *child) measureStore(l storeLoadConfig) (response, error) {
	e, err := engine(l)
	if err != nil {
		return response{}, err
	}
	s, err := store.Open(e, store.Config{})
	if err != nil {
		return response{}, errors.Join(err, e.Close())
	}
	memory.TuneRuntime(rateMemory) // as a node does, whose store is open by then
	noise := make([]byte, noiseSize)
	rand.Read(noise)
	if _, err = fill(s, noise, 0, l.Records/4, l.Callers, l.Limit); err != nil {
		return response{}, errors.Join(err, s.Close())
	}
	if l.Profile != "" {
		if err := c.record(l.Profile); err != nil {
			return response{}, errors.Join(err, s.Close())
		}
	}
	begin, first := time.Now(), measure()
	commits := s.Counters().Groups
	n, err := fill(s, noise, l.Records, l.Records, l.Callers, l.Limit)
	r := report{Tasks: n, Elapsed: time.Since(begin), Usage: measure().since(first)}
	r.Usage.Commits = s.Counters().Groups - commits
	if l.Profile != "" {
		err = errors.Join(err, c.record(""))
	}
	return response{Report: r}, errors.Join(err, s.Close())
}

func engine(l storeLoadConfig) (store.Engine, error) {
	if l.Engine == datadir.EnginePebble {
		return pebble.Open(l.Dir, pebble.Config{})
	}
	return nuts.Open(l.Dir, nuts.Config{})
}

// fill commits n records, starting at index first, and returns the number committed within
// the time limit. Their keys are ids of tasks: they increase roughly but are not written in
// order, so that an engine that sorts its data has to do so here too.
func fill(s *store.Store, noise []byte, first, n, callers int, limit time.Duration) (int, error) {
	var given, there atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(limit)
	errs := make([]error, callers)
	for i := range errs {
		wg.Go(func() {
			for b := new(store.Batch); ; b.Reset() {
				at := given.Add(1)
				if at > int64(n) || time.Now().After(end) {
					return
				}
				n := uint64(first) + uint64(at)
				id := proto.NewTaskID(time.Now())
				var key [keySize]byte
				copy(key[:], id[:])
				from := n * 8191 % (noiseSize - recordSize)
				b.Put(store.PendingTasks, key[:], noise[from:from+recordSize])
				if errs[i] = s.Apply(context.Background(), b); errs[i] != nil {
					return
				}
				there.Add(1)
			}
		})
	}
	wg.Wait()
	return int(there.Load()), errors.Join(errs...)
}

// probes is how often a latency is measured; the median is used.
const probes = 1000

// syncTime returns the time to append a record to a file in dir and sync it.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b, took := make([]byte, recordSize), make([]time.Duration, probes)
	for i := range took {
		begin := time.Now()
		if _, err := f.Write(b); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(begin)
	}
	return quantile(took, .5), nil
}

// echo echoes what arrives at a TCP port of loopback, and returns its address.
func (c *child) echo() (response, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return response{}, err
	}
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
		}
		done <- errors.Join(err, l.Close())
	}()
	c.stops = append(c.stops, func() error { return <-done })
	return response{Text: l.Addr().String()}, nil
}

// pingTime returns the round-trip time of one record.
func pingTime(addr string) (time.Duration, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	defer conn.Close()
	b, took := make([]byte, recordSize), make([]time.Duration, probes)
	for i := range took {
		begin := time.Now()
		if _, err := conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, b); err != nil {
			return 0, err
		}
		took[i] = time.Since(begin)
	}
	return quantile(took, .5), nil
}
