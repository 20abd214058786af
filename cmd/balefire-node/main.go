package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signals()
	code := execute(ctx, newApp(), os.Args[1:])
	stop()
	os.Exit(code)
}

// signals returns a context that the first SIGINT or SIGTERM ends. The second one ends the
// process, unless its command does something else with it.
func signals() (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
