package main

import "time"

// patience says every two seconds that something goes on, until it is stopped.
func (w *world) patience(what string) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	start := w.clock.Mono()
	go func() {
		defer close(gone)
		tick := time.NewTicker(silence)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				w.say("… %s, %s so far", what, brief(w.clock.Mono()-start))
			}
		}
	}()
	return func() { close(quit); <-gone }
}
