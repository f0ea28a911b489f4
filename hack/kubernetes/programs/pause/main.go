// pause holds a pod's namespaces: it sleeps until it is told to end, and reaps what the pod's processes leave behind.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		// One SIGCHLD may stand for several children.
		for child, err := 1, error(nil); child > 0 && err == nil; {
			child, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
