//go:build linux

package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Link is a wire whose frames this process forwards one by one: it provides what the
// kernel of a test machine may lack, above all delay.
type Link struct {
	out, in direction
	running sync.WaitGroup
	closing sync.Once
}

// Set shapes both directions.
func (l *Link) Set(s Shape) { l.SetOut(s); l.in.shape.Store(&s) }

// SetOut shapes what the host sends.
func (l *Link) SetOut(s Shape) { l.out.shape.Store(&s) }

// Counts returns how many frames were forwarded in both directions, and how many were
// dropped.
func (l *Link) Counts() (carried, dropped int64) {
	return l.out.carried.Load() + l.in.carried.Load(), l.out.dropped.Load() + l.in.dropped.Load()
}

// A direction is one direction of a link.
type direction struct {
	from, to         *os.File
	shape            atomic.Pointer[Shape]
	carried, dropped atomic.Int64
}

// newLink connects an interface in one namespace with one in another.
func newLink(host namespace, dev string, sw namespace, socket string) (*Link, error) {
	near, err := tap(host, dev)
	if err != nil {
		return nil, err
	}
	far, err := tap(sw, socket)
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	l := &Link{}
	l.out.from, l.out.to = near, far
	l.in.from, l.in.to = far, near
	l.Set(Shape{})
	for _, w := range []*direction{&l.out, &l.in} {
		frames := make(chan frame, 1024)
		l.running.Go(func() { w.read(frames) })
		l.running.Go(func() { w.deliver(frames) })
	}
	return l, nil
}

// close removes the link and its interfaces.
func (l *Link) close() {
	l.closing.Do(func() {
		l.out.from.Close()
		l.in.from.Close()
		l.running.Wait()
	})
}

// tap creates an interface in a namespace whose frames this process reads and writes.
func tap(s namespace, dev string) (*os.File, error) {
	var file *os.File
	err := s.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		req, err := unix.NewIfreq(dev)
		if err == nil {
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("make the interface %s: %w", dev, err), unix.Close(fd))
		}
		file = os.NewFile(uintptr(fd), dev)
		return nil
	})
	return file, err
}

// read reads frames and decides about each until the link is closed.
func (w *direction) read(frames chan<- frame) {
	defer close(frames)
	buf := make([]byte, 1<<16)
	var busy time.Time
	for {
		n, err := w.from.Read(buf)
		if err != nil {
			return // closed
		}
		s := *w.shape.Load()
		if n > 13 && buf[12] == 0x08 && buf[13] == 0x06 {
			s.Loss = 0 // ARP passes: a link loses packets, not its ends
		}
		at, ok := s.schedule(time.Now(), &busy, n, rand.Float64)
		if !ok {
			w.dropped.Add(1)
			continue
		}
		frames <- frame{at, append([]byte(nil), buf[:n]...)}
	}
}

// deliver writes each frame when it is due.
func (w *direction) deliver(frames <-chan frame) {
	var due queue
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for f, ok := due.next(time.Now()); ok; f, ok = due.next(time.Now()) {
			if _, err := w.to.Write(f.bytes); err != nil {
				w.dropped.Add(1) // the interface is down
			} else {
				w.carried.Add(1)
			}
		}
		timer.Reset(due.wait(time.Now()))
		select {
		case f, ok := <-frames:
			if !ok {
				return
			}
			due.add(f)
		case <-timer.C:
		}
	}
}
