// Browsers start no worker for a page that was opened from the disk. There the script of the search runs in a hidden
// frame instead: that has a global scope of its own, hears by its onmessage, and answers by its postMessage.
"use strict";

class FrameWorker {
  onmessage = null;
  onerror = null;
  #frame = document.createElement("iframe");
  #runs;

  constructor(address) {
    this.#runs = new Promise((runs) => {
      // Some browsers replace the frame's empty document once more: what is put into it before is lost.
      this.#frame.onload = () => {
        const scope = this.#frame.contentWindow;
        scope.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
        const script = scope.document.createElement("script");
        script.onload = () => runs(scope);
        script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: `${address} cannot be read` }));
        script.src = new URL(address, document.baseURI);
        scope.document.body.append(script);
      };
    });
    this.#frame.hidden = true;
    document.body.append(this.#frame);
  }

  postMessage(data) {
    this.#runs.then((scope) => scope.onmessage?.({ data: structuredClone(data) }));
  }

  terminate() {
    this.#frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
