/* The search of pages that are opened as files. Browsers start no worker for such a page, so the script of the worker runs
   in a hidden frame. The frame and the page hand each other the messages that a worker and its page would send. */
"use strict";

class FrameWorker extends EventTarget {
  constructor(script) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.worker = this;
    this.isReady = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }));
    this.frame.srcdoc = `<script>postMessage = (data) => frameElement.worker.deliver(data)</script>
      <script src="${script}"></script>`;
    document.body.append(this.frame);
  }

  deliver(data) {
    const message = new MessageEvent("message", { data });
    this.dispatchEvent(message);
    this.onmessage?.(message);
  }

  postMessage(data) {
    this.isReady.then(() => {
      const message = new MessageEvent("message", { data: structuredClone(data) });
      this.frame.contentWindow.dispatchEvent(message);
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
